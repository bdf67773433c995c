"""Decoded images kept on disk: made once, followed when a file changes, never trusted when damaged."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from helpers.made_files import photo
from insclr.data import cache as cache_module
from insclr.data.cache import DecodedCache, build_cache
from insclr.data.decode import BadImage, decode
from insclr.data.images import ImageList, list_images
from insclr.data.views import plain_view, to_pixels
from insclr.errors import UserError

PLENTY = 10**8


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files decoded by the cache since the test began."""
    names: list[str] = []

    def noted(file: Path, longest: int) -> object:
        names.append(file.name)
        return decode(file, longest)

    monkeypatch.setattr(cache_module, "decode", noted)
    return names


def build(images: ImageList, folder: Path, max_bytes: int = PLENTY, longest: int = 32) -> DecodedCache:
    return build_cache(images, folder, longest=longest, max_bytes=max_bytes, workers=2)


def test_pictures_are_decoded_once_and_then_read(
    tmp_path: Path, photos: Callable[..., Path], decoded: list[str]
) -> None:
    images = list_images(photos(5, size=(30, 20)))
    cache = build(images, tmp_path / "cache")
    assert len(cache) == len(decoded) == 5
    for i in range(5):
        assert torch.equal(cache.pixels(images.file(i)), to_pixels(decode(images.file(i))))
    assert len(decoded) == 5


def test_large_pictures_are_kept_small(tmp_path: Path, photos: Callable[..., Path]) -> None:
    images = list_images(photos(2, size=(200, 100)))
    cache = build(images, tmp_path / "cache")
    pixels = cache.pixels(images.file(0))
    assert tuple(pixels.shape) == (3, 16, 32)
    assert torch.equal(pixels, plain_view(decode(images.file(0), longest=32), 32, "longest"))
    # Sum of 2 x (3 x 16 x 32) bytes.
    assert (tmp_path / "cache" / "pixels.bin").stat().st_size == 3072


def test_a_second_build_does_no_work(tmp_path: Path, photos: Callable[..., Path], decoded: list[str]) -> None:
    folder = photos(4)
    (folder / "broken.jpg").write_bytes(b"broken")
    images = list_images(folder)
    build(images, tmp_path / "cache", max_bytes=4000)
    before = (tmp_path / "cache" / "index.json").stat().st_ino
    decoded.clear()
    build(images, tmp_path / "cache", max_bytes=4000)
    assert decoded == []
    assert (tmp_path / "cache" / "index.json").stat().st_ino == before


def test_a_changed_file_is_seen_at_once_and_rebuilt_alone(
    tmp_path: Path, photos: Callable[..., Path], decoded: list[str]
) -> None:
    folder = photos(4, size=(30, 20))
    images = list_images(folder)
    cache = build(images, tmp_path / "cache")
    photo(30, 20, seed=99).save(folder / "photo2.jpg", quality=95)
    os.utime(folder / "photo3.jpg", ns=(1, 1))
    decoded.clear()
    assert images.file(0) in cache
    assert images.file(1) not in cache
    assert torch.equal(cache.pixels(images.file(1)), to_pixels(decode(images.file(1))))
    assert decoded == ["photo2.jpg"]
    decoded.clear()
    rebuilt = build(images, tmp_path / "cache")
    assert sorted(decoded) == ["photo2.jpg", "photo3.jpg"]
    for i in range(4):
        assert images.file(i) in rebuilt
        assert torch.equal(rebuilt.pixels(images.file(i)), to_pixels(decode(images.file(i))))


def test_another_size_or_more_images_is_another_cache(
    tmp_path: Path, photos: Callable[..., Path], decoded: list[str]
) -> None:
    images = list_images(photos(4))
    build(images.subset([0, 1]), tmp_path / "cache")
    decoded.clear()
    build(images, tmp_path / "cache")
    assert sorted(decoded) == ["photo3.jpg", "photo4.jpg"]
    decoded.clear()
    assert build(images, tmp_path / "cache", longest=40).longest == 40
    assert len(decoded) == 4


def test_the_bound_holds_and_pixels_do_not_depend_on_it(tmp_path: Path, photos: Callable[..., Path]) -> None:
    images = list_images(photos(5, size=(64, 64)))
    one = 3 * 32 * 32
    cache = build(images, tmp_path / "cache", max_bytes=2 * one + 100)
    assert [images.file(i) in cache for i in range(5)] == [True, True, False, False, False]
    assert (tmp_path / "cache" / "pixels.bin").stat().st_size == 2 * one
    everything = build(images, tmp_path / "all")
    for i in range(5):
        assert torch.equal(cache.pixels(images.file(i)), everything.pixels(images.file(i)))


def test_no_room_at_all(tmp_path: Path, photos: Callable[..., Path]) -> None:
    images = list_images(photos(2))
    cache = build(images, tmp_path / "cache", max_bytes=0)
    assert len(cache) == 0
    assert tuple(cache.pixels(images.file(0)).shape) == (3, 27, 32)


def test_unreadable_and_vanished_files_are_bad_images(tmp_path: Path, photos: Callable[..., Path]) -> None:
    folder = photos(3)
    (folder / "photo1.jpg").write_bytes(b"")
    images = list_images(folder)
    cache = build(images, tmp_path / "cache")
    assert len(cache) == 2
    with pytest.raises(BadImage, match="empty"):
        cache.pixels(images.file(0))
    (folder / "photo2.jpg").unlink()
    with pytest.raises(BadImage, match="not found"):
        cache.pixels(images.file(1))


def test_writing_to_a_picture_does_not_reach_the_cache(tmp_path: Path, photos: Callable[..., Path]) -> None:
    images = list_images(photos(1))
    build(images, tmp_path / "cache").pixels(images.file(0)).zero_()
    assert DecodedCache(tmp_path / "cache").pixels(images.file(0)).any()


def test_a_cache_travels_to_another_process(tmp_path: Path, photos: Callable[..., Path]) -> None:
    images = list_images(photos(2))
    cache = build(images, tmp_path / "cache")
    sent = pickle.dumps(cache)
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent).pixels(images.file(1)), cache.pixels(images.file(1)))


@pytest.mark.parametrize(
    "damage", ["{", "{}", "[]", '{"longest": 32, "max_bytes": 1, "bytes": 3, "entries": {"a": [1]}}']
)
def test_a_damaged_cache_is_built_anew(tmp_path: Path, photos: Callable[..., Path], damage: str) -> None:
    images = list_images(photos(2))
    build(images, tmp_path / "cache")
    (tmp_path / "cache" / "index.json").write_text(damage)
    assert len(build(images, tmp_path / "cache")) == 2


def test_a_cut_pixel_file_is_built_anew(tmp_path: Path, photos: Callable[..., Path]) -> None:
    images = list_images(photos(2, size=(30, 20)))
    build(images, tmp_path / "cache")
    pixels = tmp_path / "cache" / "pixels.bin"
    pixels.write_bytes(pixels.read_bytes()[:100])
    cache = build(images, tmp_path / "cache")
    assert torch.equal(cache.pixels(images.file(1)), to_pixels(decode(images.file(1))))


def test_a_full_disk_is_a_user_error_and_leaves_nothing(
    tmp_path: Path, photos: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "_write", full)
    with pytest.raises(UserError, match="full"):
        build(list_images(photos(2)), tmp_path / "home" / "cache")
    assert list((tmp_path / "home").iterdir()) == []


def test_the_cache_leaves_room_on_the_disk(
    tmp_path: Path, photos: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10_000

    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda _: Usage)  # type: ignore[attr-defined]
    # 9,000 bytes hold two pictures of 3 x 32 x 32 = 3,072, not three.
    assert len(build(list_images(photos(5, size=(64, 64))), tmp_path / "cache")) == 2

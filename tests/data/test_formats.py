"""What phones and cameras write is read upright; what is not read is counted; a frame of a video is an image."""

import contextlib
import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.made_files import photo
from helpers.made_formats import dng, save_as, write_video
from insclr.data import formats
from insclr.data.check import check_images
from insclr.data.decode import BadImage, decode, read_header
from insclr.data.formats import not_read_lines, on_disk, split_frame
from insclr.data.images import list_images
from insclr.errors import UserError

UPRIGHT, TURNED = 1, 6  # EXIF: as it is; to be turned clockwise by 90 degrees


def alike(one: Image.Image, other: Image.Image) -> float:
    """Correlation of the pixels of two images, shrunk to one small size."""
    assert abs(one.width / one.height - other.width / other.height) < 0.02
    a, b = (np.asarray(each.convert("RGB").resize((64, 64)), float).ravel() for each in (one, other))
    return float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize("suffix", ["heic", "heif", "avif"])
@pytest.mark.parametrize("orientation", [UPRIGHT, TURNED])
def test_photos_of_phones_are_read_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    drawn = photo(320, 240)
    save_as(drawn, tmp_path / f"a.{suffix}", orientation)
    expected = drawn.rotate(-90, expand=True) if orientation == TURNED else drawn
    read = decode(tmp_path / f"a.{suffix}")
    assert (read.mode, read.size) == ("RGB", expected.size)
    assert alike(read, expected) > 0.99


def test_a_broken_heic_is_reported(tmp_path: Path) -> None:
    save_as(photo(320, 240), tmp_path / "a.heic")
    content = (tmp_path / "a.heic").read_bytes()
    for broken in (content[:40], content[: len(content) // 2], content[:60] + b"\xff" * 200):
        with pytest.raises(BadImage, match=r"corrupt|truncated"):
            decode(broken)


def test_a_heic_with_too_many_pixels_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_as(photo(320, 240), tmp_path / "a.heic")
    monkeypatch.setattr("insclr.data.decode.require_few_pixels", _at_most_1000_pixels)
    with pytest.raises(BadImage, match="too large"):
        read_header(tmp_path / "a.heic")


def _at_most_1000_pixels(width: int, height: int) -> None:
    if width * height > 1000:
        raise BadImage("too large")


@pytest.mark.parametrize("orientation", [UPRIGHT, TURNED])
def test_the_preview_of_a_raw_photo_is_what_is_read(tmp_path: Path, orientation: int) -> None:
    drawn = photo(1280, 960)
    (tmp_path / "a.DNG").write_bytes(dng(drawn, orientation=orientation))
    expected = drawn.rotate(-90, expand=True) if orientation == TURNED else drawn
    assert decode(tmp_path / "a.DNG").size == expected.size
    assert alike(decode(tmp_path / "a.DNG"), expected) > 0.99


def test_a_raw_photo_without_a_preview_is_developed_at_half_its_size(tmp_path: Path) -> None:
    drawn = photo(320, 240)
    (tmp_path / "a.dng").write_bytes(dng(drawn, preview=False))
    read = decode(tmp_path / "a.dng")
    assert read.size == (160, 120)
    assert alike(read, drawn) > 0.8  # other colours and brightness, the same picture


def test_a_file_that_is_no_raw_photo_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.nef").write_bytes(b"II*\0" + b"\0" * 100)
    with pytest.raises(BadImage, match="corrupt RAW file"):
        decode(tmp_path / "a.nef")


@pytest.fixture
def video(tmp_path: Path) -> Path:
    write_video(tmp_path / "clip.MP4", [photo(320, 240, seed=k) for k in range(5)], seconds_each=2.0)
    return tmp_path / "clip.MP4"


def test_a_video_is_listed_as_its_key_frames_in_their_order(video: Path) -> None:
    images = list_images(video.parent)
    assert images.paths == tuple(f"clip.MP4#t={second}.0" for second in (0, 2, 4, 6, 8))
    for k in range(5):
        assert alike(decode(images.file(k)), photo(320, 240, seed=k)) > 0.99
    assert check_images(images, workers=1).formats == {"video frames": 5}
    assert alike(decode(video), photo(320, 240, seed=2)) > 0.99  # of the whole: the one in the middle


def test_a_long_video_gives_twelve_frames(tmp_path: Path) -> None:
    write_video(tmp_path / "long.mkv", [photo(64, 48, seed=k) for k in range(40)], seconds_each=2.0)
    assert len(list_images(tmp_path)) == 12


def test_a_broken_video_is_listed_and_unreadable(tmp_path: Path) -> None:
    (tmp_path / "clip.mov").write_bytes(b"\0\0\0\x20ftypqt  " + b"\0" * 500)
    (tmp_path / "list.mp4").write_text(
        "#EXTM3U\n#EXTINF:1,\nphoto.jpg\n"
    )  # a list of other files is no video
    report = check_images(list_images(tmp_path), workers=1)
    assert [path for path, _ in report.unreadable] == ["clip.mov", "list.mp4"]
    assert all(reason.startswith("corrupt video") for _, reason in report.unreadable)


def test_only_a_name_of_a_video_has_frames() -> None:
    assert split_frame("a/clip.mp4#t=12.5") == (Path("a/clip.mp4"), 12.5)
    for plain in ("a#t=1.jpg", "clip.mp4", "clip.mp4#t=x", "photo.jpg#t=1"):
        assert on_disk(Path(plain)) == Path(plain)


def test_what_is_not_read_is_counted_by_kind(
    photos: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(2)
    for name in ("a.mp4", "b.mov", "c.AVI", "d.cr3", "e.psd", "notes.txt", "f.xmp"):
        (folder / name).write_bytes(b"x")
    monkeypatch.setattr(formats, "can_read", lambda _: False)
    images = list_images(folder)
    assert images.paths == ("photo1.jpg", "photo2.jpg")
    assert not_read_lines(images.not_read) == [
        "3 videos, 1 RAW photo: not read; pip install 'insclr[raw,video]'",
        "1 .psd picture: not read; save them as JPEG or PNG",
    ]
    lines = check_images(images, workers=1).lines()
    assert "3 videos, 1 RAW photo: not read; pip install 'insclr[raw,video]'" in lines
    assert "2 other files" in lines


def test_a_folder_of_videos_alone_gets_a_message_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    monkeypatch.setattr(formats, "can_read", lambda _: False)
    with pytest.raises(UserError, match=r"found: 1 \.mp4.*pip install 'insclr\[video\]'"):
        list_images(tmp_path)


def test_without_the_packages_the_reason_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.dng").write_bytes(b"x")
    (tmp_path / "a.mp4").write_bytes(b"x")
    for name, package in (("a.dng", "rawpy"), ("a.mp4", "av")):
        monkeypatch.setitem(__import__("sys").modules, package, None)
        with pytest.raises(BadImage, match=r"pip install 'insclr\[(raw|video)\]'"):
            decode(tmp_path / name)


def test_names_that_are_not_utf8_are_left_out_and_counted(photos: Callable[..., Path]) -> None:
    folder = photos(3)
    (folder / "photo3.jpg").rename(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.jpg"))
    images = list_images(folder)
    assert images.paths == ("photo1.jpg", "photo2.jpg")
    assert not_read_lines(images.not_read) == ["1 name that is not UTF-8: not read; rename the files"]
    with pytest.raises(UserError, match="not UTF-8"):
        list_images(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.jpg"))


def test_a_heic_upload_is_decoded_from_memory(tmp_path: Path) -> None:
    save_as(photo(320, 240), tmp_path / "a.heic")
    content = (tmp_path / "a.heic").read_bytes()
    assert decode(io.BytesIO(content)).size == decode(content).size == (320, 240)


@pytest.mark.parametrize("name", ["a.heic", "a.dng", "b.dng", "a.mp4"])
def test_damaged_files_give_an_image_or_a_reason_and_nothing_else(tmp_path: Path, name: str) -> None:
    if name == "a.heic":
        save_as(photo(160, 120), tmp_path / name)
    elif name == "a.mp4":
        write_video(tmp_path / name, [photo(64, 48, seed=k) for k in range(3)])
    else:
        (tmp_path / name).write_bytes(dng(photo(160, 120), preview=name == "a.dng"))
    whole, chance = (tmp_path / name).read_bytes(), random.Random(name)
    folder = tmp_path / "damaged"
    folder.mkdir()
    for _ in range(25):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 12)):
            damaged[chance.randrange(min(len(damaged), 2000))] = chance.randrange(256)
        (folder / name).write_bytes(damaged[: chance.choice((len(damaged), chance.randrange(len(damaged))))])
        images = list_images(folder)
        for i in range(len(images)):
            with contextlib.suppress(BadImage):
                assert decode(images.file(i)).mode == "RGB"

"""Batches of views: the right ones, in order, decoded once, with replacements for unreadable images."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from insclr.data import loader as loader_module
from insclr.data.decode import decode
from insclr.data.images import ImageList, Skipped, list_images
from insclr.data.loader import Collection, ViewBatch, ViewSpec, view_batches
from insclr.data.views import fit_image
from insclr.errors import UserError

VIEWS = ViewSpec(plain_size=24, augmented_size=16, augmented=2)
IDS = [[0, 1, 2], [3, 4, 5], [2, 0, 4], [1, 3, 5]]


def batches(
    images: ImageList,
    ids: list[list[int]] = IDS,
    views: ViewSpec = VIEWS,
    seed: int = 0,
    workers: int = 0,
    skipped: Skipped | None = None,
    **more: int,
) -> list[ViewBatch]:
    skipped = Skipped() if skipped is None else skipped
    return list(view_batches(Collection(images, workers, skipped), ids, views, seed=seed, **more))


def plain(file: Path) -> torch.Tensor:
    return torch.tensor(fit_image(decode(file), 24, "square"))


def same(a: ViewBatch, b: ViewBatch) -> bool:
    assert a.plain is not None
    assert b.plain is not None
    assert a.augmented is not None
    assert b.augmented is not None
    return (
        torch.equal(a.ids, b.ids) and torch.equal(a.plain, b.plain) and torch.equal(a.augmented, b.augmented)
    )


def test_batches_hold_the_views_of_their_images_in_order(photos: Callable[..., Path]) -> None:
    images = list_images(photos(6))
    seen = batches(images)
    assert [batch.ids.tolist() for batch in seen] == IDS
    for batch, ids in zip(seen, IDS, strict=True):
        assert batch.plain is not None
        assert batch.augmented is not None
        assert (batch.plain.dtype, tuple(batch.plain.shape)) == (torch.uint8, (3, 3, 24, 24))
        assert (batch.augmented.dtype, tuple(batch.augmented.shape)) == (torch.uint8, (2, 3, 3, 16, 16))
        for row, i in enumerate(ids):
            assert torch.equal(
                batch.plain[row],
                plain(images.file(i)),
            )


def test_only_the_views_asked_for_are_made(photos: Callable[..., Path]) -> None:
    images = list_images(photos(6))
    (plain_only,) = batches(images, [[0, 1]], ViewSpec(plain_size=24, augmented=0))
    assert plain_only.plain is not None
    assert plain_only.augmented is None
    (augmented_only,) = batches(images, [[0, 1]], ViewSpec(augmented_size=16, plain=False, augmented=3))
    assert augmented_only.plain is None
    assert augmented_only.augmented is not None
    assert tuple(augmented_only.augmented.shape) == (3, 2, 3, 16, 16)


def test_each_image_is_decoded_once_for_all_its_views(
    photos: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    images, decoded = list_images(photos(6)), []
    monkeypatch.setattr(
        loader_module,
        "decode",
        lambda file, longest: decoded.append(file) or decode(file, longest),  # type: ignore[func-returns-value]
    )
    batches(images)
    assert decoded == [images.file(i) for ids in IDS for i in ids]


def test_large_photos_are_decoded_no_larger_than_the_views_need() -> None:
    # 1.5 x the larger of the two views that are really made.
    assert ViewSpec(plain_size=512, augmented_size=224).longest == 768
    assert ViewSpec(plain_size=512, augmented_size=224, plain=False).longest == 336
    assert ViewSpec(plain_size=160, augmented_size=224, augmented=0).longest == 240


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_changes_nothing(photos: Callable[..., Path], workers: int) -> None:
    folder = photos(6)
    (folder / "photo5.jpg").write_bytes(b"broken")
    images = list_images(folder)
    for a, b in zip(batches(images), batches(images, workers=workers), strict=True):
        assert same(a, b)


def test_the_seed_decides_and_views_differ(photos: Callable[..., Path]) -> None:
    images = list_images(photos(6))
    first, second, other = (batches(images, seed=seed)[0].augmented for seed in (7, 7, 8))
    assert first is not None
    assert other is not None
    assert second is not None
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])


def test_an_image_gets_new_views_every_time(photos: Callable[..., Path]) -> None:
    images = list_images(photos(2))
    one, two = (batch.augmented for batch in batches(images, [[0, 0], [0, 0]]))
    assert one is not None
    assert two is not None
    assert not torch.equal(one[:, 0], one[:, 1])
    assert not torch.equal(one[:, 0], two[:, 0])


def test_a_resumed_run_goes_on_with_the_same_views(photos: Callable[..., Path]) -> None:
    images = list_images(photos(6))
    whole, rest = batches(images), batches(images, IDS[2:], first_batch=2)
    assert all(same(a, b) for a, b in zip(whole[2:], rest, strict=True))


def test_a_batch_split_over_processes_has_the_same_views(photos: Callable[..., Path]) -> None:
    images = list_images(photos(6))
    whole = batches(images, [[0, 1, 2, 3]])[0]
    parts = [batches(images, [[0, 1]])[0], batches(images, [[2, 3]], first_position=2)[0]]
    assert whole.augmented is not None
    joined = torch.cat([part.augmented for part in parts if part.augmented is not None], dim=1)
    assert torch.equal(whole.augmented, joined)


def test_an_unreadable_image_is_replaced_and_noted(tmp_path: Path, photos: Callable[..., Path]) -> None:
    folder = photos(20)
    (folder / "photo2.jpg").write_bytes(b"")
    (folder / "photo4.jpg").write_bytes(b"not a picture")
    images, skipped = list_images(folder), Skipped()
    seen = batches(images, [[0, 1, 2, 3]] * 3, skipped=skipped)
    for batch in seen:
        ids = batch.ids.tolist()
        assert (ids[0], ids[2]) == (0, 2)
        # The replacements are other images, each once in the batch.
        assert {ids[1], ids[3]} <= set(range(4, 20))
        assert ids[1] != ids[3]
        assert batch.plain is not None
        assert torch.equal(
            batch.plain[1],
            plain(images.file(ids[1])),
        )
    assert len({tuple(batch.ids.tolist()) for batch in seen}) > 1
    assert dict(skipped) == {
        "photo2.jpg": "empty file (0 bytes)",
        "photo4.jpg": "not an image (or of an unknown format)",
    }
    skipped.write(tmp_path / "skipped.csv")
    assert (tmp_path / "skipped.csv").read_text().startswith("path,reason\nphoto2.jpg,empty file")


def test_a_file_that_vanishes_during_the_run_is_skipped(photos: Callable[..., Path]) -> None:
    folder, skipped = photos(6), Skipped()
    images = list_images(folder)

    def ids() -> Iterator[list[int]]:
        yield [0, 1]
        (folder / "photo1.jpg").unlink()
        yield [0, 1]

    seen = list(view_batches(Collection(images, 0, skipped), ids(), VIEWS, seed=0))
    assert seen[0].ids.tolist() == [0, 1]
    assert seen[1].ids[0] not in (0, 1)
    assert dict(skipped) == {"photo1.jpg": "file not found (moved or deleted)"}


def test_the_last_readable_image_is_found_even_if_it_is_in_the_batch(photos: Callable[..., Path]) -> None:
    folder = photos(5)
    for k in (1, 2, 4, 5):
        (folder / f"photo{k}.jpg").write_bytes(b"")
    (batch,) = batches(list_images(folder), [[0, 2, 1]])
    assert batch.ids.tolist() == [2, 2, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_readable_is_a_user_error(photos: Callable[..., Path], workers: int) -> None:
    folder, skipped = photos(3), Skipped()
    for file in folder.iterdir():
        file.write_bytes(b"")
    with pytest.raises(UserError, match=r"^none of the 3 images.*insclr check"):
        batches(list_images(folder), [[0]], workers=workers, skipped=skipped)
    assert len(skipped) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_generator_is_left_alone(photos: Callable[..., Path], workers: int) -> None:
    images = list_images(photos(6))
    before = torch.get_rng_state()
    batches(images, workers=workers)
    assert torch.equal(torch.get_rng_state(), before)


def test_endless_batches_are_read_ahead_only_a_little(photos: Callable[..., Path]) -> None:
    images, asked = list_images(photos(2)), []

    def endless() -> Iterator[list[int]]:
        while True:
            asked.append(1)
            yield [0, 1]

    seen = view_batches(Collection(images, 1, Skipped()), endless(), VIEWS, seed=0)
    for _ in range(3):
        next(seen)
    assert len(asked) < 10
    seen.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


def test_no_batches_is_no_work(photos: Callable[..., Path]) -> None:
    assert batches(list_images(photos(2)), []) == []


def test_little_shared_memory_takes_fewer_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Usage:
        free = 64 * 2**20

    monkeypatch.setattr(loader_module.shutil, "disk_usage", lambda _: Usage)  # type: ignore[attr-defined]
    # 0.9 x 64 MB hold 57 batches of 1 MB: 1 with the network, 3 a worker.
    assert loader_module.affordable_workers(4, 2**20) == 4
    assert loader_module.affordable_workers(40, 2**20) == 18
    assert loader_module.affordable_workers(4, 60 * 2**20) == 0
    assert "--shm-size" in caplog.text


def test_workers_are_not_forked_and_a_plain_script_runs_once(
    photos: Callable[..., Path], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys, threading\n"
        "from insclr.data.images import Skipped, list_images\n"
        "from insclr.data.loader import Collection, ViewSpec, view_batches\n"
        "print('began')\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "collection = Collection(list_images(sys.argv[1]), 1, Skipped())\n"
        "for batch in view_batches(collection, [[0], [1]], ViewSpec(16, 16), seed=0):\n"
        "    (worker,) = multiprocessing.active_children()\n"
        "    print(batch.ids.tolist(), type(worker).__name__)\n"
        "print(__file__ == sys.argv[0])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(photos(2))], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split("\n")[:4] == ["began", "[0] ForkServerProcess", "[1] ForkServerProcess", "True"]
    assert "fork" not in done.stderr

"""Indexing does what has changed and nothing else, however often it is interrupted."""

import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.histogram_describer import HistogramDescriber, draw, draw_things
from insclr.data.images import Skipped, list_images
from insclr.describe.pipeline import Described
from insclr.errors import UserError
from insclr.retrieval.index import IndexReport, index_images
from insclr.store import open_store


@pytest.fixture
def images(tmp_path: Path) -> Path:
    draw_things(tmp_path / "images", 4, 5)
    return tmp_path / "images"


def index(images: Path, store: Path | str, **options: object) -> tuple[HistogramDescriber, IndexReport]:
    describer = HistogramDescriber()
    return describer, index_images(describer, list_images(images), store, **options)  # type: ignore[arg-type]


def test_a_second_run_embeds_nothing(images: Path, tmp_path: Path) -> None:
    describer, report = index(images, tmp_path / "s")
    assert (report.added, report.total, len(describer.described)) == (20, 20, 20)
    describer, report = index(images, tmp_path / "s")
    assert (report.unchanged, report.added, describer.described) == (20, 0, [])
    assert report.summary() == "20 images in the store: 20 unchanged"


def test_new_changed_touched_and_moved_files(images: Path, tmp_path: Path) -> None:
    index(images, tmp_path / "s")
    draw(images / "9" / "0.png", 9, 0)  # new
    draw(images / "0" / "0.png", 8, 0)  # changed
    os.utime(images / "0" / "1.png", ns=(1, 1))  # touched
    (images / "0" / "2.png").rename(images / "moved.png")
    describer, report = index(images, tmp_path / "s")
    assert sorted(describer.described) == ["0/0.png", "9/0.png"]
    assert (report.added, report.changed, report.updated, report.vanished) == (2, 1, 1, 1)
    assert open_store(tmp_path / "s").count() == 22
    _, report = index(images, tmp_path / "s", prune=True)
    assert report.pruned == 1
    store = open_store(tmp_path / "s")
    fresh = HistogramDescriber().files(list_images(images), report.skipped).descriptors
    rows = store.rows_by_path()
    assert set(rows) == set(list_images(images).paths)
    np.testing.assert_allclose(
        store.descriptors([rows[path].id for path in list_images(images).paths]), fresh, atol=1e-3
    )


def test_files_that_swap_their_content_swap_their_vectors(images: Path, tmp_path: Path) -> None:
    index(images, tmp_path / "s", batch=1)
    a, b = images / "0" / "0.png", images / "3" / "4.png"
    a.rename(images / "x")
    b.rename(a)
    (images / "x").rename(b)
    _, report = index(images, tmp_path / "s", batch=1)
    store = open_store(tmp_path / "s")
    rows = store.rows_by_path()
    vectors = HistogramDescriber().files(list_images(images), report.skipped).descriptors
    np.testing.assert_allclose(
        store.descriptors([rows[path].id for path in list_images(images).paths]), vectors, atol=1e-3
    )


def test_unreadable_files_are_named_and_lose_their_old_row(images: Path, tmp_path: Path) -> None:
    index(images, tmp_path / "s")
    (images / "0" / "0.png").write_bytes(b"no picture any more")
    (images / "new.png").write_bytes(b"")
    _, report = index(images, tmp_path / "s")
    assert [path for path, _ in report.skipped] == ["0/0.png", "new.png"]
    assert open_store(tmp_path / "s").count() == 19


def test_pipes_devices_and_links_to_themselves_are_named_and_hold_up_nothing(
    images: Path, tmp_path: Path
) -> None:
    os.mkfifo(images / "pipe.png")
    (images / "endless.png").symlink_to("/dev/zero")
    (images / "loop.png").symlink_to(images / "loop.png")
    _, report = index(images, tmp_path / "s")
    assert dict(report.skipped) == {
        "endless.png": "not a regular file",
        "loop.png": "cannot be read: Too many levels of symbolic links",
        "pipe.png": "not a regular file",
    }
    assert report.total == 20


class ReplacingDescriber(HistogramDescriber):
    """Before it reads its files, somebody puts another photo into one of them."""

    def __init__(self, file: Path, thing: int) -> None:
        super().__init__()
        self.file, self.thing = file, thing

    def files(self, *arguments: Any, **options: Any) -> Described:
        draw(self.file, self.thing, 0)
        return super().files(*arguments, **options)


def test_a_photo_replaced_while_it_is_indexed_gets_the_right_descriptor(images: Path, tmp_path: Path) -> None:
    original = (images / "0" / "0.png").read_bytes()
    describer = ReplacingDescriber(images / "0" / "0.png", thing=7)
    index_images(describer, list_images(images), tmp_path / "s")
    # The replaced content comes back under another name: its descriptor must not be that of thing 7.
    (images / "back.png").write_bytes(original)
    os.utime(images / "0" / "0.png", ns=(2, 2))
    _, report = index(images, tmp_path / "s")
    assert (report.added, report.updated) == (1, 1)
    assert _descriptors_are_of_the_files(images, tmp_path / "s")


def test_new_bytes_of_the_old_size_and_time_are_found_by_verify(images: Path, tmp_path: Path) -> None:
    a, b = images / "0" / "0.png", images / "3" / "0.png"
    size = max(a.stat().st_size, b.stat().st_size)
    for file in (a, b):  # bytes after the end of a PNG do no harm
        file.write_bytes(file.read_bytes().ljust(size, b"\0"))
        os.utime(file, ns=(5, 5))
    index(images, tmp_path / "s")
    a.write_bytes(b.read_bytes())
    os.utime(a, ns=(5, 5))
    _, report = index(images, tmp_path / "s")
    assert (report.unchanged, _descriptors_are_of_the_files(images, tmp_path / "s")) == (20, False)
    _, report = index(images, tmp_path / "s", verify=True)
    assert (report.unchanged, report.changed) == (19, 1)
    assert _descriptors_are_of_the_files(images, tmp_path / "s")


def _descriptors_are_of_the_files(images: Path, store: Path) -> bool:
    listed, opened = list_images(images), open_store(store)
    rows = opened.rows_by_path()
    expected = HistogramDescriber().files(listed, Skipped()).descriptors
    return np.allclose(opened.descriptors([rows[path].id for path in listed.paths]), expected, atol=1e-3)


def test_columns_of_a_table_are_kept_and_follow_it(images: Path, tmp_path: Path) -> None:
    table = images / "list.csv"
    table.write_text("path,kind\n0/0.png,nut\n0/1.png,bolt\n")
    index(table, tmp_path / "s")
    table.write_text("path,kind\n0/0.png,nut\n0/1.png,screw\n")
    describer, report = index(table, tmp_path / "s")
    assert (report.updated, report.unchanged, describer.described) == (1, 1, [])
    assert open_store(tmp_path / "s").rows_by_path()["0/1.png"].image.columns == {"kind": "screw"}


def test_the_folder_of_a_table_indexed_later_keeps_the_columns(images: Path, tmp_path: Path) -> None:
    table = images / "list.csv"
    table.write_text("path,kind\n0/0.png,nut\n0/1.png,bolt\n")
    index(table, tmp_path / "s")
    draw(images / "0" / "1.png", 8, 0)  # changed
    _, report = index(images, tmp_path / "s")
    assert (report.unchanged, report.changed, report.added, report.updated) == (1, 1, 18, 0)
    rows = open_store(tmp_path / "s").rows_by_path()
    assert [rows[f"0/{view}.png"].image.columns for view in range(3)] == [
        {"kind": "nut"},
        {"kind": "bolt"},
        {},
    ]


def test_a_second_folder_goes_in_under_its_whole_paths(images: Path, tmp_path: Path) -> None:
    index(images / "0", tmp_path / "s")
    index(images / "1", tmp_path / "s")
    paths = sorted(open_store(tmp_path / "s").rows_by_path())
    assert paths[:5] == [str(images / "1" / f"{view}.png") for view in range(5)]
    assert paths[5:] == [f"{view}.png" for view in range(5)]


def test_a_store_of_another_model_is_refused(images: Path, tmp_path: Path) -> None:
    index(images, tmp_path / "s")
    other = HistogramDescriber()
    other.fingerprint = "ffff"
    with pytest.raises(UserError, match="another model"):
        index_images(other, list_images(images), tmp_path / "s")


def test_milvus_is_indexed_by_the_same_call(images: Path, milvus_uri: str) -> None:
    index(images, milvus_uri)
    (images / "0" / "0.png").unlink()
    describer, report = index(images, milvus_uri, prune=True)
    assert (report.unchanged, report.pruned, report.total, describer.described) == (19, 1, 19, [])


class SlowEmbedder(HistogramDescriber):
    """Takes its time, so that a kill hits it in the middle of its work."""

    def files(self, *arguments: Any, **options: Any) -> Described:
        time.sleep(0.1)
        return super().files(*arguments, **options)


def _index_slowly(images: str, store: str) -> None:
    index_images(SlowEmbedder(), list_images(images), store, batch=3)


def test_killed_at_any_moment_it_goes_on_to_the_same_rows(images: Path, tmp_path: Path) -> None:
    index(images, tmp_path / "unbroken")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["insclr.retrieval.index"])  # the long imports are done once
    dice = random.Random(0)
    for _ in range(3):
        run = context.Process(target=_index_slowly, args=(str(images), str(tmp_path / "s")))
        run.start()
        started = time.monotonic()
        while not (tmp_path / "s" / "writer.lock").exists() and time.monotonic() < started + 30:
            time.sleep(0.01)
        time.sleep(dice.uniform(0.0, 0.2))
        os.kill(run.pid or 0, signal.SIGKILL)
        run.join()
        assert run.exitcode == -signal.SIGKILL
    index(images, tmp_path / "s")
    assert _content(tmp_path / "s") == _content(tmp_path / "unbroken")


def _content(store: Path) -> dict[str, tuple[object, bytes]]:
    opened = open_store(store)
    rows = opened.rows_by_path()
    vectors = opened.descriptors([row.id for row in rows.values()])
    assert opened.count() == len(rows)
    return {
        path: (row.image, np.round(vector, 2).tobytes())
        for (path, row), vector in zip(rows.items(), vectors, strict=True)
    }


def _index_products(images: Path, store: str) -> None:
    import torch

    from insclr.describe.describer import Describer
    from insclr.model.model_file import resolve_model

    torch.set_num_threads(1)
    name = "pretrained:efficientnet_lite0"
    describer = Describer(name, resolve_model(name), workers=1)
    index_images(describer, list_images(images), store, batch=64)


@pytest.mark.slow
def test_products60_killed_three_times_has_the_rows_of_an_unbroken_run(shared: Path, tmp_path: Path) -> None:
    images = shared / "data" / "products60" / "images"
    context = multiprocessing.get_context("spawn")
    dice = random.Random(time.time_ns())
    unbroken = context.Process(
        target=_index_products,
        args=(
            images,
            str(tmp_path / "unbroken"),
        ),
    )
    began = time.monotonic()
    unbroken.start()
    unbroken.join()
    whole = time.monotonic() - began
    for _ in range(3):
        run = context.Process(
            target=_index_products,
            args=(
                images,
                str(tmp_path / "s"),
            ),
        )
        run.start()
        # Together less than a whole run: every kill hits it at work.
        run.join(dice.uniform(0.05, 0.25) * whole)
        os.kill(run.pid or 0, signal.SIGKILL)
        run.join()
        assert run.exitcode == -signal.SIGKILL
    _index_products(images, str(tmp_path / "s"))
    one, other = open_store(tmp_path / "s"), open_store(tmp_path / "unbroken")
    rows, expected = one.rows_by_path(), other.rows_by_path()
    assert {path: row.image for path, row in rows.items()} == {
        path: row.image for path, row in expected.items()
    }
    assert len(rows) == one.count() == 2701
    paths = list(rows)
    products = one.descriptors([rows[p].id for p in paths]) * other.descriptors(
        [expected[p].id for p in paths]
    )
    assert products.sum(1).min() > 0.999


_opened: list[str] | None = None  # the files that this process opens, while a test counts them


def _count_open(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_count_open)


@pytest.mark.parametrize("verify", [False, True])
def test_a_file_is_read_once(small_collection: Path, tmp_path: Path, verify: bool) -> None:
    from insclr.describe.describer import Describer
    from insclr.model.model_file import resolve_model

    global _opened
    name = "pretrained:efficientnet_lite0"
    describer = Describer(name, resolve_model(name), workers=2)
    images = list_images(small_collection).subset(range(20))
    if verify:
        index_images(describer, images, tmp_path / "s")
    _opened = []
    try:
        index_images(describer, images, tmp_path / "s", verify=verify)
        counts = [_opened.count(str(images.file(i))) for i in range(len(images))]
    finally:
        _opened = None
    assert counts == [1] * len(images)

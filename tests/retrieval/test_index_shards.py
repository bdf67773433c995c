"""Several shards make, row for row, what one process makes, also when some of them die on the way."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.histogram_describer import HistogramDescriber, draw, draw_things
from insclr.data.images import ImageList, list_images
from insclr.describe.descriptor_file import describe_to_file, read_descriptors
from insclr.describe.pipeline import Described
from insclr.errors import UserError
from insclr.retrieval.index import index_images
from insclr.shards import Shard, shard_of
from insclr.store import Store, open_store


def shards(of: int) -> list[Shard]:
    return [Shard(number, of) for number in range(1, of + 1)]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    draw_things(tmp_path / "images", 5, 5)
    (tmp_path / "images" / "2" / "9.png").write_bytes(b"no picture")
    return tmp_path / "images"


@pytest.mark.parametrize("count", [0, 1, 7, 8, 100])
def test_every_image_is_in_one_share_and_shares_are_equal(count: int) -> None:
    shares = [one.share(count) for one in shards(8)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_option_and_torchrun_say_which_shard_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shard_of("") == Shard(1, 1)
    assert shard_of("2/4") == Shard(2, 4)
    for wrong in ("0/4", "5/4", "2", "a/b", "2/4/8", "-1/4", "1/0"):
        with pytest.raises(UserError, match="NUMBER/OF: say 2/4"):
            shard_of(wrong)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    assert shard_of("") == Shard(3, 3, rank=True)
    with pytest.raises(UserError, match="leave --shard out"):
        shard_of("1/3")


@dataclass
class Rows:
    """Everything that a store holds, but for the rows' ids in a cluster."""

    images: dict[str, object]
    order: list[str]
    descriptors: np.ndarray
    columns: list[str]

    @classmethod
    def of(cls, store: Store) -> "Rows":
        rows = store.rows_by_path()
        order = sorted(rows, key=lambda path: rows[path].id)
        descriptors = store.descriptors([rows[path].id for path in order])
        return cls({path: row.image for path, row in rows.items()}, order, descriptors, store.columns())

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Rows)
        np.testing.assert_array_equal(self.descriptors, other.descriptors)
        return (self.images, self.order, self.columns) == (other.images, other.order, other.columns)


def index(images: ImageList, store: Path | str, shard: Shard, **options: Any) -> HistogramDescriber:
    describer = HistogramDescriber()
    index_images(describer, images, store, shard=shard, **options)
    return describer


def test_shards_of_a_folder_make_the_store_that_one_process_makes(images: Path, tmp_path: Path) -> None:
    listed = list_images(images)
    index_images(HistogramDescriber(), listed, tmp_path / "one", batch=4)
    described = []
    for shard in (Shard(3, 3), Shard(1, 3), Shard(2, 3)):
        assert not (tmp_path / "many").exists()
        described += index(listed, tmp_path / "many", shard, batch=4).described
    assert sorted(described) == sorted(listed.paths)
    assert Rows.of(open_store(tmp_path / "many")) == Rows.of(open_store(tmp_path / "one"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["images", "many", "one"]


def test_shards_bring_a_store_up_to_date(images: Path, tmp_path: Path) -> None:
    for store in ("one", "many"):
        index_images(HistogramDescriber(), list_images(images), tmp_path / store, regions=True)
    draw(images / "0" / "0.png", 17, 0)
    draw(images / "9" / "0.png", 9, 0)
    (images / "4" / "4.png").unlink()
    (images / "3" / "0.png").rename(images / "3" / "moved.png")
    listed = list_images(images)
    index_images(HistogramDescriber(), listed, tmp_path / "one", prune=True, batch=4)
    reports = [
        index_images(HistogramDescriber(), listed, tmp_path / "many", shard=shard, prune=True, batch=4)
        for shard in shards(2)
    ]
    assert "2/2" in reports[0].waits_for
    assert not reports[1].waits_for
    assert (reports[1].added, reports[1].changed, reports[1].pruned) == (2, 1, 2)
    one, many = open_store(tmp_path / "one"), open_store(tmp_path / "many")
    assert Rows.of(many) == Rows.of(one)
    assert many.region_ids().tolist() == one.region_ids().tolist()


class _Dies(HistogramDescriber):
    def files(self, *arguments: Any, **options: Any) -> Described:
        if self.described:
            raise KeyboardInterrupt
        return super().files(*arguments, **options)


@pytest.mark.parametrize("kind", ["local", "lite"])
def test_a_shard_that_died_goes_on_where_it_was(
    images: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    listed = list_images(images)
    store = str(tmp_path / "s") if kind == "local" else request.getfixturevalue("lite_uri")
    dying = _Dies()
    with pytest.raises(KeyboardInterrupt):
        index_images(dying, listed, store, shard=Shard(1, 2), batch=4)
    again = HistogramDescriber()
    index_images(again, listed, store, shard=Shard(1, 2), batch=4)
    assert dying.described + again.described == list(listed.paths[:12])
    index_images(HistogramDescriber(), listed, store, shard=Shard(2, 2), batch=4)
    index_images(HistogramDescriber(), listed, tmp_path / "one")
    found, one = open_store(store).rows_by_path(), open_store(tmp_path / "one").rows_by_path()
    assert {path: row.image for path, row in found.items()} == {path: row.image for path, row in one.items()}


def test_shards_write_a_cluster_at_once(images: Path, tmp_path: Path, milvus_uri: str) -> None:
    """Two processes with a share each, at the same time, into a server where there is no store yet."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "from helpers.histogram_describer import HistogramDescriber\n"
        "from insclr.data.images import list_images\n"
        "from insclr.retrieval.index import index_images\n"
        "from insclr.shards import shard_of\n"
        "shard = shard_of(sys.argv[4])\n"
        "index_images(HistogramDescriber(), list_images(sys.argv[2]), sys.argv[3], shard=shard, batch=3)\n"
    )
    listing = tmp_path / "list.csv"
    paths = list_images(images).paths
    listing.write_text("path,colour\n" + "\n".join(f"images/{path},c{i % 3}" for i, path in enumerate(paths)))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, Path(__file__).parents[1], listing, milvus_uri, f"{number}/2"]
        )
        for number in (1, 2)
    ]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    index_images(HistogramDescriber(), list_images(listing), tmp_path / "one")
    found, one = open_store(milvus_uri), open_store(tmp_path / "one")
    assert {path: row.image for path, row in found.rows_by_path().items()} == {
        path: row.image for path, row in one.rows_by_path().items()
    }
    assert found.columns() == one.columns() == ["colour"]


def test_shards_of_another_model_or_list_are_not_mixed(images: Path, tmp_path: Path) -> None:
    index(list_images(images), tmp_path / "s", Shard(1, 2), batch=4)
    draw(images / "0" / "00.png", 30, 0)  # both shares have moved by now
    report = index_images(
        HistogramDescriber(), list_images(images), tmp_path / "s", shard=Shard(2, 2), batch=4
    )
    assert "when these are done too: 1/2." in report.waits_for
    index(list_images(images), tmp_path / "s", Shard(1, 2), batch=4)
    assert open_store(tmp_path / "s").count() == 26
    with pytest.raises(UserError, match="leave --shard out"):
        index(list_images(images), tmp_path / "s", Shard(1, 2), verify=True)


def test_a_script_under_torchrun_indexes_all_images_unless_it_asks_for_a_shard(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank of a script may index alone; the others would never come."""
    import insclr

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    images = list_images(small_collection).subset(range(3))
    report = insclr.index("pretrained:efficientnet_lite0", images, tmp_path / "s", size=32, engine="torch")
    assert (report.total, report.waits_for) == (3, "")


@pytest.fixture(scope="module")
def network() -> object:
    import insclr

    return insclr.load("pretrained:efficientnet_lite0", size=32)


@pytest.fixture
def photos(tmp_path: Path) -> ImageList:
    (tmp_path / "photos").mkdir()
    for i in range(9):
        draw(tmp_path / "photos" / f"{i}.png", i, 0)
    (tmp_path / "photos" / "5.png").write_bytes(b"no picture")
    return list_images(tmp_path / "photos")


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_shards_make_the_descriptor_file_that_one_process_makes(
    network: object, photos: ImageList, tmp_path: Path, suffix: str
) -> None:
    settings = network.descriptor  # type: ignore[attr-defined]
    one, many = tmp_path / f"one{suffix}", tmp_path / f"many{suffix}"
    describe_to_file(network, photos, one, settings)  # type: ignore[arg-type]
    for shard in (Shard(2, 3), Shard(3, 3), Shard(1, 3)):
        assert not many.exists()
        describe_to_file(network, photos, many, settings, shard)  # type: ignore[arg-type]
    left, right = read_descriptors(one), read_descriptors(many)
    assert (left.key, left.paths) == (right.key, right.paths)
    np.testing.assert_array_equal(left.stamps, right.stamps)
    np.testing.assert_allclose(left.descriptors, right.descriptors, atol=1e-6)
    assert (tmp_path / f"many{suffix}.skipped.csv").read_text() == (
        tmp_path / f"one{suffix}.skipped.csv"
    ).read_text()
    assert not list(tmp_path.glob(".many*"))
    again = describe_to_file(network, photos, many, settings, Shard(1, 3))  # type: ignore[arg-type]
    assert "0 described, 8 kept" in str(again)
    assert "when these are done too: 3/3" in str(again)  # its share is the unreadable image


_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
_MODEL = "pretrained:efficientnet_lite0"


def insclr(*arguments: str | Path, ranks: bool = True) -> "subprocess.CompletedProcess[str]":
    command = [*(_TORCHRUN if ranks else [sys.executable]), "-m", "insclr", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def test_ranks_of_torchrun_share_the_images(small_collection: Path, tmp_path: Path) -> None:
    """The first rank waits for the others and puts all together."""
    ran = insclr("embed", _MODEL, small_collection, "--size", "32", "--out", tmp_path / "many.npz")
    assert ran.returncode == 0, ran.stderr
    assert "put together from 2 shards" in ran.stdout
    assert "rank 1 of 2 is done" in ran.stdout
    assert read_descriptors(tmp_path / "many.npz").paths == list_images(small_collection).paths


@pytest.mark.slow
def test_ranks_index_and_evaluate_as_one_process(small_collection: Path, tmp_path: Path) -> None:
    for ranks in (True, False):
        store = tmp_path / f"store{int(ranks)}"
        assert (
            insclr(
                "index", _MODEL, small_collection, "--size", "32", "--store", store, ranks=ranks
            ).returncode
            == 0
        )
    assert Rows.of(open_store(tmp_path / "store1")) == Rows.of(open_store(tmp_path / "store0"))
    measured: list[str | Path] = [
        "evaluate",
        _MODEL,
        "--size",
        "32",
        "--labels",
        small_collection / "labels.csv",
    ]
    ran = insclr(*measured, "--parts", tmp_path / "parts")
    assert ran.returncode == 0, ran.stderr
    alone = insclr(*measured, ranks=False)
    assert alone.stdout.strip() in ran.stdout


@pytest.mark.slow
def test_a_killed_rank_ends_the_command_and_is_made_up_for(small_collection: Path, tmp_path: Path) -> None:
    command = ["embed", _MODEL, str(small_collection), "--size", "32", "--out", str(tmp_path / "many.npz")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [*_TORCHRUN, "-m", "insclr", *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    deadline = time.monotonic() + 120
    while len(ranks := children.read_text().split()) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(int(ranks[-1]), signal.SIGKILL)
    assert running.wait(120) != 0
    assert not (tmp_path / "many.npz").exists()
    assert insclr(*command).returncode == 0
    assert read_descriptors(tmp_path / "many.npz").paths == list_images(small_collection).paths

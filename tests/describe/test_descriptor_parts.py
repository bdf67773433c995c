"""Evaluations whose images several processes describe give the numbers that one process gives."""

import json
from pathlib import Path

import numpy as np
import pytest

import insclr
from insclr.arrays import no_regions
from insclr.data.images import ImageList, list_images
from insclr.describe import descriptor_parts
from insclr.describe.descriptor_parts import DescriptorParts
from insclr.describe.pipeline import Described
from insclr.engine.opened import OpenedModel
from insclr.errors import OtherShardsMissing, UserError
from insclr.shards import Shard


@pytest.fixture(scope="module")
def model() -> OpenedModel:
    return insclr.load("pretrained:efficientnet_lite0", size=32)


def _ones(model: OpenedModel, count: int) -> Described:
    dim = model.engine.dim
    return Described(np.ones((count, dim), np.float32), [""] * count, [no_regions(dim)] * count)


def test_the_last_shard_measures_what_one_process_measures(
    model: OpenedModel, small_collection: Path, tmp_path: Path
) -> None:
    labels = small_collection / "labels.csv"
    whole = insclr.evaluate(model, labels)
    for shard, left in (("2/3", "1/3, 3/3"), ("1/3", "3/3")):
        with pytest.raises(OtherShardsMissing, match=left):
            insclr.evaluate(model, labels, shard=shard, parts=tmp_path / "parts")
    last = insclr.evaluate(model, labels, shard="3/3", parts=tmp_path / "parts")
    np.testing.assert_allclose(last.ap, whole.ap, atol=1e-9)  # type: ignore[union-attr]
    np.testing.assert_array_equal(last.top, whole.top)  # type: ignore[union-attr]


def test_shards_without_a_common_folder_are_refused(small_collection: Path) -> None:
    with pytest.raises(UserError, match="--parts"):
        insclr.evaluate("pretrained:efficientnet_lite0", small_collection / "labels.csv", shard="1/2")


def test_a_shard_that_died_describes_only_what_is_missing(
    model: OpenedModel, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = list_images(small_collection)
    monkeypatch.setattr(descriptor_parts, "IMAGES_PER_PART", 5)
    described: list[int] = []

    def dying(_: object, some: ImageList, *__: object, **___: object) -> Described:
        if len(described) == 3:
            described.append(0)
            raise KeyboardInterrupt
        described.append(len(some))
        return _ones(model, len(some))

    monkeypatch.setattr(descriptor_parts, "describe_files", dying)
    lists = [(images, None)]
    first = DescriptorParts(model, tmp_path / "parts", Shard(1, 2))
    with pytest.raises(KeyboardInterrupt):
        first.share(lists)
    with pytest.raises(OtherShardsMissing, match="2/2"):
        first.share(lists)
    assert described == [5, 5, 5, 0, 5, 4]  # 24 of 48 images, each once
    DescriptorParts(model, tmp_path / "parts", Shard(2, 2)).share(lists)
    assert first(images, None).shape == (48, model.engine.dim)
    assert sum(described) == 48
    assert max(len(block) for block in first.blocks(images)) == 5


def test_a_changed_image_or_box_is_described_again(
    model: OpenedModel, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = list_images(small_collection).subset([0, 1])
    monkeypatch.setattr(
        descriptor_parts,
        "describe_files",
        lambda _, some, *__, **___: _ones(model, len(some)),
    )
    for boxes in (None, [(0, 0, 9, 9), None], [(0, 0, 8, 8), None], [(0, 0, 8, 8), None]):
        DescriptorParts(model, tmp_path / "parts", Shard())(images, boxes)
    assert len(list((tmp_path / "parts").iterdir())) == 3


def test_ranks_other_than_the_first_leave_the_measuring_to_it(
    model: OpenedModel, small_collection: Path, tmp_path: Path
) -> None:
    lists = [(list_images(small_collection), None)]
    with pytest.raises(OtherShardsMissing, match="rank 1 of 2 is done; the first one puts all together"):
        DescriptorParts(model, tmp_path / "parts", Shard(2, 2, rank=True)).share(lists)
    DescriptorParts(model, tmp_path / "parts", Shard(1, 2, rank=True)).share(lists)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half", None])
def test_a_damaged_part_is_described_again(
    content: bytes | None,
    model: OpenedModel,
    small_collection: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    images = list_images(small_collection).subset(range(4))
    whole = DescriptorParts(model, tmp_path)(images, None)
    (part,) = tmp_path.glob("*.npz")
    flipped = bytearray(part.read_bytes())
    flipped[len(flipped) // 3] ^= 1
    part.write_bytes(flipped if content is None else content)
    np.testing.assert_array_equal(DescriptorParts(model, tmp_path)(images, None), whole)
    assert "described again" in caplog.text


def test_parts_of_an_earlier_version_are_read(
    model: OpenedModel, small_collection: Path, tmp_path: Path
) -> None:
    images = list_images(small_collection).subset(range(3))
    DescriptorParts(model, tmp_path)(images, None)
    (part,) = tmp_path.glob("*.npz")
    old = np.eye(3, model.engine.dim, dtype=np.float32)
    old[1] = 0
    np.savez(part, descriptors=old, skipped=json.dumps([[images.paths[1], "gone"]]))
    parts = DescriptorParts(model, tmp_path)
    np.testing.assert_array_equal(parts(images, None), old)
    assert (dict(parts.skipped), parts.described) == ({images.paths[1]: "gone"}, 0)

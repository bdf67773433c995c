"""Descriptor files: both formats, resumed, extended."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from insclr.data.images import list_images
from insclr.describe import descriptor_parts
from insclr.describe.descriptor_file import describe_to_file, read_descriptors
from insclr.errors import UserError
from insclr.model.model_file import Model, resolve_model
from insclr.recipe import DescriptorRecipe

_SETTINGS = DescriptorRecipe(size=48, fit="square", scales=(1.0,))


@pytest.fixture(scope="module")
def model() -> Model:
    return resolve_model("pretrained:efficientnet_lite0")


@pytest.fixture
def photos(small_collection: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for file in sorted(small_collection.glob("thing[0-4]-0.png")):
        shutil.copy(file, folder)
    return folder


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_both_formats_give_back_paths_and_unit_vectors(
    model: Model, photos: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"vectors{suffix}"
    assert describe_to_file(model, list_images(photos), out, _SETTINGS).described == 5
    held = read_descriptors(out)
    assert held.paths == tuple(f"thing{i}-0.png" for i in range(5))
    assert held.descriptors.shape == (5, 1280)
    np.testing.assert_allclose(np.linalg.norm(held.descriptors, axis=1), 1, atol=1e-5)


def test_a_second_run_describes_only_what_is_new_or_changed(
    model: Model, photos: Path, small_collection: Path, tmp_path: Path
) -> None:
    out = tmp_path / "vectors.parquet"
    describe_to_file(model, list_images(photos), out, _SETTINGS)
    before = read_descriptors(out).descriptors
    shutil.copy(small_collection / "thing7-0.png", photos)  # new
    shutil.copy(small_collection / "thing8-0.png", photos / "thing1-0.png")  # changed
    (photos / "thing2-0.png").unlink()  # gone
    (photos / "broken.png").write_bytes(b"?")
    summary = describe_to_file(model, list_images(photos), out, _SETTINGS)
    assert (summary.described, summary.reused, summary.skipped) == (2, 3, 1)
    held = read_descriptors(out)
    assert held.paths == ("thing0-0.png", "thing1-0.png", "thing3-0.png", "thing4-0.png", "thing7-0.png")
    np.testing.assert_array_equal(held.descriptors[[0, 2, 3]], before[[0, 3, 4]])
    assert np.abs(held.descriptors[1] - before[1]).max() > 0.01
    assert "broken.png" in (tmp_path / "vectors.parquet.skipped.csv").read_text()


def test_a_second_run_with_nothing_to_do_keeps_all(model: Model, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npz"
    describe_to_file(model, list_images(photos), out, _SETTINGS)
    before = read_descriptors(out).descriptors
    summary = describe_to_file(model, list_images(photos), out, _SETTINGS)
    assert (summary.described, summary.reused) == (0, 5)
    np.testing.assert_array_equal(read_descriptors(out).descriptors, before)


def test_other_settings_describe_everything_again(model: Model, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npz"
    describe_to_file(model, list_images(photos), out, _SETTINGS)
    larger = DescriptorRecipe(size=64, fit="square", scales=(1.0,))
    assert describe_to_file(model, list_images(photos), out, larger).described == 5


def test_an_interrupted_run_goes_on_where_it_stopped(
    model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptor_parts, "IMAGES_PER_PART", 2)
    out, real, calls = tmp_path / "vectors.npz", descriptor_parts.describe_files, []  # type: ignore[attr-defined]

    def dies_at_the_second_chunk(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(descriptor_parts, "describe_files", dies_at_the_second_chunk)
    with pytest.raises(KeyboardInterrupt):
        describe_to_file(model, list_images(photos), out, _SETTINGS)
    assert not out.exists()
    summary = describe_to_file(model, list_images(photos), out, _SETTINGS)
    assert (summary.described, summary.reused) == (3, 2)
    assert [file.name for file in tmp_path.iterdir() if "parts" in file.name] == []


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.parquet or \.npz"):
        read_descriptors(tmp_path / "vectors.csv")
    with pytest.raises(UserError, match="no descriptor file"):
        read_descriptors(tmp_path / "vectors.npz")
    (tmp_path / "vectors.parquet").write_bytes(b"PAR?")
    with pytest.raises(UserError, match="not a whole descriptor file"):
        read_descriptors(tmp_path / "vectors.parquet")

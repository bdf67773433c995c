"""Learned local features: the whole path with networks of random weights, which find an image again and no more."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from helpers.blots import textured
from helpers.histogram_describer import HistogramDescriber
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.options import SearchOptions
from insclr.retrieval.index import index_images
from insclr.retrieval.local.extractor import Extractor, open_extractor, store_extractor
from insclr.retrieval.local.features import MAX_FEATURES, LocalFeatures
from insclr.retrieval.local.geometry import verify
from insclr.retrieval.local.local_feature_database import LocalFeatureDatabase
from insclr.retrieval.query import image_query
from insclr.retrieval.search import Match
from insclr.retrieval.search import search as search_store
from insclr.store import Store, open_store

MOST_BYTES = 54_408  # what SIFT's features take at most, docs/small-objects.md


def test_without_kornia_the_message_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kornia.feature", None)
    with pytest.raises(UserError, match=r"pip install 'insclr\[learned\]'"):
        open_extractor(str(tmp_path / "disk.pth"))


def test_a_matcher_goes_with_learned_features(tmp_path: Path) -> None:
    assert open_extractor("") is None
    with pytest.raises(UserError, match="--local-matcher goes with"):
        open_extractor("sift", str(tmp_path / "glue.pth"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with disk.pth, as it is published, disk.safetensors with the same weights, and glue.safetensors."""
    import kornia.feature as networks

    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    disk = networks.DISK().state_dict()
    torch.save({"extractor": disk}, folder / "disk.pth")
    safetensors.torch.save_file(disk, folder / "disk.safetensors")
    glue = networks.LightGlue(features=None, input_dim=128).state_dict()  # type: ignore[arg-type]
    del glue["confidence_thresholds"]  # derived, and not in every file
    safetensors.torch.save_file(glue, folder / "glue.safetensors")
    return folder


@pytest.fixture(autouse=True)
def _nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("something is downloaded")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refused)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in (1, 2, 3):
        textured(seed, 200).save(folder / f"{seed}.png")
    Image.new("RGB", (120, 120), "white").save(folder / "white.png")
    return folder


def opened(file: Path, matcher: Path | None = None) -> Extractor:
    found = open_extractor(str(file), str(matcher or ""))
    assert found is not None
    return found


def kept_of(store: Store, table: str) -> dict[str, bytes]:
    kept = LocalFeatureDatabase(store.parts)
    try:
        return dict(kept.every(table)) if kept.hashes(table) else {}
    finally:
        kept.close()


def search(store: Store, query: Image.Image) -> dict[str, Match]:
    options = SearchOptions(rerank="geometric")
    found = search_store(store, HistogramDescriber(), [image_query(query)], options)
    return {one.path: one for one in found}


def test_features_are_bounded_and_survive_being_kept(weights: Path) -> None:
    disk = opened(weights / "disk.pth")
    found = disk.extract(textured(1, 300))
    assert 8 <= len(found) <= MAX_FEATURES
    assert found.descriptors.shape == (len(found), 128)
    assert len(found.to_bytes()) <= MOST_BYTES
    again = LocalFeatures.from_bytes(found.to_bytes(), learned=True)
    np.testing.assert_allclose(again.points, found.points, atol=2e-5)
    np.testing.assert_array_equal(again.descriptors, found.descriptors)
    np.testing.assert_allclose(np.linalg.norm(found.unit_descriptors(), axis=1), 1, atol=1e-5)
    # The bytes say what the network said, to a few thousandths.
    pixels = torch.from_numpy(np.asarray(textured(1, 300)).copy()).permute(2, 0, 1)[None] / 255
    with torch.inference_mode():
        (own,) = disk._network(pixels, n=MAX_FEATURES, pad_if_not_divisible=True)  # type: ignore[attr-defined]
    clipped = own.descriptors.numpy().clip(-0.5, 0.5)
    clipped /= np.linalg.norm(clipped, axis=1, keepdims=True)
    np.testing.assert_allclose(found.unit_descriptors(), clipped, atol=0.01)


def test_an_image_is_found_in_itself_and_points_lie_where_a_box_is(weights: Path) -> None:
    disk, image = opened(weights / "disk.safetensors"), textured(1, 240)
    whole = disk.extract(image)
    found = verify(whole, whole, match=disk.match)
    assert found is not None
    assert found.inliers > 0.5 * len(whole)
    np.testing.assert_allclose(found.transform, [[1, 0, 0], [0, 1, 0]], atol=1e-3)
    part = disk.extract(image, (120, 60, 240, 180))
    assert part.points.min(0).tolist() >= [0.5, 0.25]
    assert part.points.max(0).tolist() <= [1.0, 0.75]
    for empty in (Image.new("RGB", (100, 100), "red"), Image.new("RGB", (8, 300)), Image.new("L", (1, 1))):
        assert len(disk.extract(empty)) == 0
        assert verify(disk.extract(empty), disk.extract(empty), match=disk.match) is None


def test_a_crop_is_found_where_it_was_cut_and_nowhere_else(weights: Path) -> None:
    disk, image = opened(weights / "disk.pth"), textured(1, 240)
    found = verify(disk.extract(image.crop((20, 15, 220, 215))), disk.extract(image), match=disk.match)
    assert found is not None
    np.testing.assert_allclose(
        found.transform, [[200 / 240, 0, 20 / 240], [0, 200 / 240, 15 / 240]], atol=0.01
    )
    assert verify(disk.extract(textured(2, 200)), disk.extract(image), match=disk.match) is None


def test_a_store_names_its_extractor_and_every_search_uses_it(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, disk = tmp_path / "store", opened(weights / "disk.pth")
    index_images(HistogramDescriber(), list_images(photos), uri, extractor=disk)
    store = open_store(uri)
    kept = kept_of(store, "learned")
    assert set(kept) == {row.image.hash for row in store.rows_by_path().values()}
    assert max(map(len, kept.values())) <= MOST_BYTES
    assert store_extractor(store).fingerprint == disk.fingerprint
    found = search(store, Image.open(photos / "1.png").convert("RGB"))
    assert (found["1.png"].inliers or 0) >= 8
    assert found["white.png"].inliers == 0
    # The next run looks at new photos alone, and drops what belonged to those that are gone.
    looked: list[int] = []
    extract = type(disk).extract

    def looking(*given: Any) -> object:
        looked.append(1)
        return extract(*given)

    monkeypatch.setattr(type(disk), "extract", looking)
    textured(4, 200).save(photos / "4.png")
    (photos / "2.png").unlink()
    index_images(HistogramDescriber(), list_images(photos), uri, prune=True)
    assert len(looked) == 1
    assert len(kept_of(store, "learned")) == 4


def test_another_extractor_makes_all_features_anew(
    photos: Path, weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri, images = tmp_path / "store", list_images(photos)
    index_images(HistogramDescriber(), images, uri, local=True)
    index_images(HistogramDescriber(), images, uri, extractor=opened(weights / "disk.pth"))
    assert "extracted again" in caplog.text
    store = open_store(uri)
    assert (len(kept_of(store, "sift")), len(kept_of(store, "learned"))) == (0, 4)
    before = kept_of(store, "learned")
    other = tmp_path / "other.safetensors"
    changed = {
        key: one + 0.01 for key, one in safetensors.torch.load_file(weights / "disk.safetensors").items()
    }
    safetensors.torch.save_file(changed, other)
    index_images(HistogramDescriber(), images, uri, extractor=opened(other))
    assert kept_of(store, "learned") != before
    index_images(HistogramDescriber(), images, uri, extractor=open_extractor("sift"))
    assert (len(kept_of(store, "sift")), len(kept_of(store, "learned"))) == (4, 0)
    assert store_extractor(store).table == "sift"


def test_missing_or_other_weights_are_reported_and_can_be_given_again(
    photos: Path, weights: Path, tmp_path: Path
) -> None:
    uri, images, mine = tmp_path / "store", list_images(photos), tmp_path / "mine.pth"
    mine.write_bytes((weights / "disk.pth").read_bytes())
    index_images(HistogramDescriber(), images, uri, extractor=opened(mine))
    store = open_store(uri)
    before = kept_of(store, "learned")
    mine.rename(tmp_path / "moved.pth")
    for attempt in (lambda: store_extractor(store), lambda: index_images(HistogramDescriber(), images, uri)):
        with pytest.raises(UserError, match=r"mine\.pth, which does not exist"):
            attempt()
    index_images(HistogramDescriber(), images, uri, extractor=opened(tmp_path / "moved.pth"))
    assert kept_of(store, "learned") == before  # the same weights: nothing is made again
    safetensors.torch.save_file(
        {key: -one for key, one in safetensors.torch.load_file(weights / "disk.safetensors").items()},
        tmp_path / "x.safetensors",
    )
    torch.save(safetensors.torch.load_file(tmp_path / "x.safetensors"), tmp_path / "moved.pth")
    with pytest.raises(UserError, match="holds other weights"):
        store_extractor(store)


def test_light_glue_gives_pairs_of_points(photos: Path, weights: Path, tmp_path: Path) -> None:
    glued = opened(weights / "disk.pth", weights / "glue.safetensors")
    one, other = glued.extract(textured(1, 200)), glued.extract(textured(2, 160))
    pairs = glued.match(one, other)
    assert pairs.shape == (len(pairs), 2)
    assert (pairs < [len(one), len(other)]).all()
    assert len(np.unique(pairs[:, 0])) == len(np.unique(pairs[:, 1])) == len(pairs)
    uri = tmp_path / "store"
    index_images(HistogramDescriber(), list_images(photos), uri, extractor=glued)
    store = open_store(uri)
    assert json.loads(store_extractor(store).note)["matcher"].endswith("glue.safetensors")
    assert len(search(store, textured(1, 200))) == 4


@pytest.mark.parametrize(
    "kind", ["text", "empty", "other network", "not finite", "folder", "missing", "code"]
)
def test_a_wrong_file_is_one_sentence(weights: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "w.safetensors"
    good = safetensors.torch.load_file(weights / "disk.safetensors")
    if kind == "text":
        file.write_text("these are no weights")
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "other network":
        safetensors.torch.save_file({"fc.weight": torch.ones(2, 2)}, file)
    elif kind == "not finite":
        safetensors.torch.save_file({key: one * float("nan") for key, one in good.items()}, file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "code":
        file = tmp_path / "w.pth"
        torch.save({"extractor": good, "run": print}, file)
    with pytest.raises(UserError) as caught:
        open_extractor(str(file))
    assert file.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)  # torch's advice would run what is in the file

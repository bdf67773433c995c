"""Regions: how they are pooled, kept, searched; photos come back once, with the box of their best part."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.histogram_describer import HistogramDescriber
from helpers.unit_rows import unit
from helpers.vector_search import search_vectors
from insclr.data.images import list_images
from insclr.describe.map_features import (
    MapPooling,
    map_pooling,
    map_regions,
    most_different,
    region_squares,
)
from insclr.engine.choose import EngineOptions
from insclr.engine.opened import open_in_memory
from insclr.errors import UserError
from insclr.model.backbones import FeatureMap
from insclr.model.model_file import Model
from insclr.model.network import DescriptorNetwork, create_network
from insclr.options import SearchOptions
from insclr.recipe import NetworkRecipe, Recipe
from insclr.retrieval.index import index_images
from insclr.retrieval.ranking import search_best_region
from insclr.store import (
    MAX_REGIONS,
    IndexedImage,
    Regions,
    Store,
    open_store,
    parse_where,
)


def regions_of(count: int, number: int, seed: int = 1) -> list[Regions]:
    boxes = np.random.default_rng(seed).random((count, number, 4)).astype(np.float32)
    return [
        Regions(box, vectors) for box, vectors in zip(boxes, unit(count, number, 8, seed=seed), strict=True)
    ]


def images(count: int) -> list[IndexedImage]:
    return [IndexedImage(f"{i}.jpg", f"h{i}", 1, 1, {"room": "ab"[i % 2]}) for i in range(count)]


@pytest.mark.parametrize(("height", "width"), [(5, 5), (7, 7), (14, 14), (10, 14), (2, 2), (1, 1), (1, 9)])
def test_squares_lie_inside_the_map_and_are_parts_of_it(height: int, width: int) -> None:
    squares = region_squares(height, width)
    assert len(set(squares)) == len(squares)
    assert all(
        top >= 0 and top + side <= height and left >= 0 and left + side <= width
        for top, left, side in squares
    )
    assert all(side * side < height * width for _, _, side in squares)
    assert bool(squares) == (min(height, width) > 2 or (min(height, width) == 2 and height != width))


def test_squares_cover_every_cell_of_the_map() -> None:
    seen = np.zeros((14, 10), bool)
    for top, left, side in region_squares(14, 10):
        seen[top : top + side, left : left + side] = True
    assert seen.all()


def created(recipe: NetworkRecipe) -> tuple[DescriptorNetwork, MapPooling]:
    """A network with random weights, and how parts of its map are described."""
    network = create_network(recipe, pretrained=False)
    model = Model(network, Recipe(name="test", network=recipe), "f" * 16)
    return network, map_pooling(open_in_memory(model, EngineOptions("torch", "cpu")))


@pytest.mark.parametrize("pooling", ["gem", "mac", "spoc"])
def test_a_region_is_described_as_its_part_of_the_map_alone_would_be(pooling: str) -> None:
    torch.manual_seed(0)
    network, map_pooled = created(NetworkRecipe(pooling=pooling, gem_p=2.5, dim=16, bias=True))  # type: ignore[arg-type]
    maps = torch.rand(2, network.backbone.channels, 7, 9)
    with torch.inference_mode():
        for one, found in zip(maps, map_regions(maps.numpy(), map_pooled), strict=True):
            assert len(found.boxes) == MAX_REGIONS
            for (left, top, right, bottom), vector in zip(found.boxes, found.descriptors, strict=True):
                rows = slice(round(float(top) * 7), round(float(bottom) * 7))
                part = one[None, :, rows, round(float(left) * 9) : round(float(right) * 9)]
                expected = network.head(network.pool(FeatureMap(part, None)))[0].numpy()
                np.testing.assert_allclose(vector, expected, atol=1e-4)


def test_a_map_of_one_cell_has_no_regions() -> None:
    network, pooling = created(NetworkRecipe(dim=8))
    maps = torch.rand(1, network.backbone.channels, 1, 1).numpy()
    (found,) = map_regions(maps, pooling)
    assert found.boxes.shape == (0, 4)
    assert found.descriptors.shape == (0, 8)


def test_regions_that_say_the_same_are_kept_once() -> None:
    # The whole looks along x; two regions along y, one along z, one nearly as the whole.
    whole = np.array([[1.0, 0, 0]], np.float32)
    regions = np.array([[[0.0, 1, 0], [0.0, 1, 0.01], [0.0, 0, 1], [1, 0.1, 0]]], np.float32)
    regions /= np.linalg.norm(regions, axis=2, keepdims=True)
    chosen = most_different(whole, regions, 2)[0].tolist()
    assert len({0, 1} & set(chosen)) == 1
    assert 2 in chosen


def test_regions_come_back_as_they_were_written(store: Store) -> None:
    kept = regions_of(3, 4)
    store.upsert(images(3), unit(3, 8), kept)
    ids = [store.rows_by_path()[f"{i}.jpg"].id for i in range(3)]
    assert store.has_regions()
    assert sorted(store.region_ids().tolist()) == sorted(ids)
    for found, expected in zip(store.regions(ids), kept, strict=True):
        order = [int(np.abs(found.descriptors - one).sum(1).argmin()) for one in expected.descriptors]
        np.testing.assert_allclose(found.boxes[order], expected.boxes, atol=1e-3)
        np.testing.assert_allclose(found.descriptors[order], expected.descriptors, atol=1e-3)


def test_the_best_region_ranks_and_a_photo_is_found_once(store: Store) -> None:
    whole, parts = unit(12, 8), regions_of(12, MAX_REGIONS)
    store.upsert(images(12), whole, parts)
    paths = {row.id: row.image.path for row in store.rows_by_path().values()}
    queries = unit(5, 8, seed=9)
    for query in queries:
        found = search_best_region(store, query[None], 6)
        assert found.boxes is not None
        best = [
            max(float(one @ query), float((part.descriptors @ query).max()))
            for one, part in zip(whole, parts, strict=True)
        ]
        expected = np.argsort(-np.array(best))[:6]
        assert [paths[int(one)] for one in found.ids] == [f"{i}.jpg" for i in expected]
        np.testing.assert_allclose(found.similarities, np.array(best)[expected], atol=2e-3)
        for row, box in zip(expected, found.boxes, strict=True):
            similar = parts[row].descriptors @ query
            right = parts[row].boxes[similar.argmax()] if similar.max() > whole[row] @ query else [0, 0, 1, 1]
            np.testing.assert_allclose(box, right, atol=1e-3)


def test_a_filter_holds_for_regions_too(store: Store) -> None:
    store.upsert(images(6), unit(6, 8), regions_of(6, 3))
    ids = search_best_region(store, unit(1, 8, seed=4), 6, parse_where("room = b", store.columns())).ids
    found = {row.image.path for row in store.rows(ids.tolist())}
    assert found == {"1.jpg", "3.jpg", "5.jpg"}


def test_regions_go_with_their_photo_and_with_its_old_content(store: Store) -> None:
    store.upsert(images(3), unit(3, 8), regions_of(3, 2))
    ids = [store.rows_by_path()[f"{i}.jpg"].id for i in range(3)]
    store.delete(["0.jpg"])
    store.upsert([IndexedImage("1.jpg", "other", 1, 1)], unit(1, 8, seed=5))
    store.update([IndexedImage("2.jpg", "h2", 2, 2, {"room": "c"})])
    assert store.region_ids().tolist() == [ids[2]]
    assert [len(one.boxes) for one in store.regions(ids)] == [0, 0, 2]


def test_searching_regions_of_a_store_without_them_reports_what_to_do(store: Store) -> None:
    store.upsert(images(3), unit(3, 8))
    with pytest.raises(UserError, match=r"has no regions: make them with `insclr index .* --regions`"):
        search_vectors(store, unit(1, 8), SearchOptions(ranking="regions"))


def draw_corner(file: Path, colour: tuple[int, int, int], corner: tuple[int, int]) -> None:
    """A grey photo with one colour in one of its quarters."""
    picture = Image.new("RGB", (64, 64), (128, 128, 128))
    picture.paste(colour, (corner[0], corner[1], corner[0] + 32, corner[1] + 32))
    picture.save(file)


@pytest.fixture
def corners(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    draw_corner(folder / "red.png", (255, 0, 0), (32, 0))
    draw_corner(folder / "blue.png", (0, 0, 255), (0, 32))
    Image.new("RGB", (64, 64), (128, 128, 128)).save(folder / "grey.png")
    return folder


def test_a_thing_in_a_corner_is_found_with_its_box(corners: Path, tmp_path: Path) -> None:
    describer = HistogramDescriber()
    index_images(describer, list_images(corners), tmp_path / "s", regions=True)
    store = open_store(tmp_path / "s")
    red = describer.images([Image.new("RGB", (64, 64), (255, 0, 0))])
    first = search_vectors(store, red, SearchOptions(top=3, ranking="regions"))[0]
    store.close()
    assert (first.path, first.box) == ("red.png", (0.5, 0.0, 1.0, 0.5))
    assert first.similarity == pytest.approx(1.0, abs=1e-3)
    assert first.to_json()["box"] == (0.5, 0.0, 1.0, 0.5)


def test_a_store_is_given_regions_later_and_goes_on_having_them(corners: Path, tmp_path: Path) -> None:
    describer = HistogramDescriber()
    index_images(describer, list_images(corners), tmp_path / "s")
    report = index_images(describer, list_images(corners), tmp_path / "s", regions=True)
    assert (report.regions, report.unchanged) == (3, 0)
    draw_corner(corners / "green.png", (0, 255, 0), (0, 0))
    (corners / "red.png").rename(corners / "moved.png")
    described = len(describer.described)
    report = index_images(describer, list_images(corners), tmp_path / "s", prune=True)
    assert (report.added, report.unchanged, report.pruned) == (2, 2, 1)
    assert describer.described[described:] == ["green.png"]  # the moved photo keeps what it had
    store = open_store(tmp_path / "s")
    assert len(store.region_ids()) == store.count() == 4
    store.close()

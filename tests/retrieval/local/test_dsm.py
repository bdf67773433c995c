"""Matched cells of maps: a scale and a shift where there is one, nothing where there is none."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.blots import textured
from insclr.data.images import list_images
from insclr.describe.cells import Cells
from insclr.describe.describer import ModelDescriber
from insclr.model.model_file import resolve_model
from insclr.options import SearchOptions
from insclr.retrieval.index import index_images
from insclr.retrieval.local.dsm import match_cells
from insclr.retrieval.search import search_files

SIDE = 10  # cells along a map


def grid(places: list[tuple[int, int]]) -> np.ndarray:
    corners = np.array([(x, y, x + 1, y + 1) for x, y in places], np.float32)
    return corners / SIDE


def unit(count: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, 32)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


PLACES = [(x, y) for x in range(1, 8, 2) for y in range(0, 8, 2)]  # 16 cells


def test_a_scale_and_a_shift_are_found_among_wrong_matches() -> None:
    # Half as large, moved by 3 cells right and 2 down; and as many cells that match by chance.
    moved = [(x // 2 + 3, y // 2 + 2) for x, y in PLACES]
    strays = [(int(x), int(y)) for x, y in np.random.default_rng(1).integers(0, SIDE, (8, 2))]
    descriptors = unit(24)
    query = Cells(descriptors, grid(PLACES + strays))
    found = match_cells(query, Cells(descriptors, grid(moved + strays[::-1])))
    assert found is not None
    assert found.inliers >= 16
    assert found.transform[0, 0] == found.transform[1, 1] == pytest.approx(0.5, abs=0.1)
    np.testing.assert_allclose(found.box, (0.3, 0.22, 0.8, 0.72), atol=0.1)
    expected = found.query_points * found.transform[0, 0] + found.transform[:, 2]
    np.testing.assert_allclose(found.found_points, expected, atol=0.1)


def test_the_part_of_a_query_is_where_its_points_are() -> None:
    cells = Cells(unit(16), grid(PLACES))
    found = match_cells(cells, cells, (0.5, 0.0, 1.0, 0.5))
    assert found is not None
    np.testing.assert_allclose(found.query_points, np.array([0.5, 0]) + 0.5 * found.found_points, atol=1e-5)
    carried = found.query_points @ found.transform[:, :2].T + found.transform[:, 2]
    np.testing.assert_allclose(carried, found.found_points, atol=0.1)
    np.testing.assert_allclose(found.box, (0, 0, 1, 1), atol=0.05)


@pytest.mark.parametrize(
    "places",
    [
        [(5, 5)] * 16,  # everything on one cell
        [(x, 4) for x, _ in PLACES],  # on a line
        [(9 - x, y) for x, y in PLACES],  # mirrored
    ],
)
def test_what_no_camera_does_is_no_geometry(places: list[tuple[int, int]]) -> None:
    descriptors = unit(16)
    assert match_cells(Cells(descriptors, grid(PLACES)), Cells(descriptors, grid(places))) is None


def test_cells_that_are_not_alike_are_not_matched() -> None:
    assert match_cells(Cells(unit(16), grid(PLACES)), Cells(unit(16, seed=1), grid(PLACES))) is None
    few = Cells(unit(3), grid(PLACES[:3]))
    assert match_cells(few, few) is None


def test_a_search_is_verified_by_the_maps_and_a_vanished_file_is_left_in_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(3):
        textured(seed, 160).save(photos / f"{seed}.png")
    Image.new("RGB", (60, 60), "white").save(photos / "white.png")
    name = "pretrained:efficientnet_lite0"
    index_images(ModelDescriber(name, resolve_model(name), workers=0), list_images(photos), tmp_path / "s")
    (photos / "2.png").unlink()
    query = tmp_path / "query.png"
    textured(1, 160).save(query)
    (found,) = search_files(tmp_path / "s", query, SearchOptions(rerank="dsm"))
    by_path = {match.path: match for match in found.matches}
    assert found.matches[0].path == "1.png"
    assert (by_path["1.png"].inliers or 0) >= 6
    assert by_path["1.png"].box == pytest.approx((0, 0, 1, 1), abs=0.1)
    assert by_path["2.png"].inliers is None
    assert "1 of the first 4 images are gone or have changed" in caplog.text

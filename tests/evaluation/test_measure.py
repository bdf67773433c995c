"""Rankings by parts: what they find, their boxes, and that they agree with the plain ranking where they must."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from helpers.blots import placed, textured
from helpers.unit_rows import unit
from insclr.cli import app, evaluation  # noqa: F401  (registers the command)
from insclr.data.labels import Labels
from insclr.errors import UserError
from insclr.evaluation.evaluate import LeaveOneOut, evaluate_labels
from insclr.evaluation.measure import (
    MatchedPoints,
    RowRanker,
    open_matched_points,
    rank_by_regions,
    rank_globally,
    rank_rows,
    true_boxes,
)
from insclr.evaluation.protocol import iou
from insclr.evaluation.results import LabelResult
from insclr.retrieval.local_features import extract_features
from insclr.store import Regions
from insclr_demo import draw_collection


def evaluate_rows(labels: Labels, ranker: RowRanker, points: MatchedPoints | None = None) -> LabelResult:
    task = LeaveOneOut(labels)
    return task.measure(rank_rows(task, ranker, points), true_boxes(labels))


def test_iou_by_hand() -> None:
    assert iou((0, 0, 1, 1), (0, 0, 1, 1)) == 1
    assert iou((0, 0, 0.5, 1), (0.5, 0, 1, 1)) == 0
    assert iou((0, 0, 0.5, 1), (0.25, 0, 0.75, 1)) == pytest.approx(1 / 3)
    assert iou((0.2, 0.2, 0.2, 0.2), (0.2, 0.2, 0.2, 0.2)) == 0


def test_the_plain_ranking_is_measured_as_ever() -> None:
    labels = Labels(Path(), tuple(map(str, range(30))), tuple(str(i % 5) for i in range(30)))
    rows = unit(30, 8)
    expected = evaluate_labels(rows, labels)
    found = evaluate_rows(labels, rank_globally(rows, np.arange(30)))
    assert found.map == pytest.approx(expected.map)
    assert found.recall(1) == expected.recall(1)
    assert (found.top == expected.top).all()
    assert found.box_iou is None


@pytest.fixture
def busy(tmp_path: Path) -> Labels:
    """Two queries and four photos of 100 x 50 pixels; the thing is in the left half of each."""
    for i in range(4):
        Image.new("RGB", (100, 50), (40 * i, 90, 90)).save(tmp_path / f"{i}.png")
    return Labels(
        tmp_path,
        ("q0.png", "q1.png", "0.png", "1.png", "2.png", "3.png"),
        ("a", "b", "a", "b", "a", "b"),
        ("query", "query", "index", "index", "index", "index"),
        (None, None, (0, 0, 50, 50), (0, 0, 50, 50), (0, 0, 50, 50), (0, 0, 50, 50)),
    )


def test_the_best_region_decides_and_its_box_is_measured(busy: Labels) -> None:
    a, b, nothing = np.eye(3, dtype=np.float32)
    whole = np.stack([a, b, nothing, nothing, nothing, nothing])
    left, right = (0, 0, 0.5, 1), (0.5, 0, 1, 1)
    regions = [Regions(np.zeros((0, 4), np.float32), np.zeros((0, 3), np.float32))] * 2
    # Photos 0 to 2 have their thing on the left, as the labels say; of photo 3 the right part looks like it.
    for thing, box in ((a, left), (b, left), (a, left), (b, right)):
        regions.append(Regions(np.array([box, (0, 0, 1, 0.5)], np.float32), np.stack([thing, nothing])))
    result = evaluate_rows(busy, rank_by_regions(whole, regions, busy.role_ids("index")))
    assert result.map == pytest.approx(100)
    assert result.box_iou == pytest.approx((1 + 1 + 1 + 0) / 4)
    assert result.boxes == 4
    assert result.to_json()["box_iou"] == pytest.approx(75)
    assert "75.00  mean IoU of 4 boxes" in result.table()
    plain = evaluate_rows(busy, rank_globally(whole, busy.role_ids("index")))
    assert plain.map < 100
    assert plain.box_iou is None


def test_matched_points_lead_and_their_box_goes_before_that_of_the_ranking(tmp_path: Path) -> None:
    things = [textured(1), textured(2)]
    images = [*things, *(placed(things[i % 2], 90 * i, 0.75, (200, 100), seed=60 + i) for i in range(4))]
    images += [textured(70 + i, 480) for i in range(4)]
    for i, image in enumerate(images):
        image.save(tmp_path / f"{i}.png")
    labels = Labels(
        tmp_path,
        tuple(f"{i}.png" for i in range(10)),
        ("a", "b", "a", "b", "a", "b", "c", "d", "e", "f"),
        ("query", "query", *["index"] * 8),
        (None, None, *[(200.0, 100.0, 380.0, 280.0)] * 4, *[None] * 4),
    )
    rows, index = unit(10, 8), labels.role_ids("index")  # descriptors that know nothing
    frames = Regions(np.array([(0.0, 0.0, 1.0, 1.0)], np.float32), rows[:1])
    ranker = rank_by_regions(rows, [frames] * 10, index)
    features = [extract_features(one.convert("RGB")) for one in images]
    points = open_matched_points(features, rows, index, "on")
    assert evaluate_rows(labels, ranker).map < 80
    result = evaluate_rows(labels, ranker, points)
    assert result.map == pytest.approx(100)
    assert (result.box_iou or 0) > 0.8
    flat = [extract_features(Image.new("RGB", (200, 200), "grey"))] * 10
    assert open_matched_points(flat, rows, index, "auto") is None


def test_true_boxes_are_fractions_of_the_images(busy: Labels) -> None:
    assert true_boxes(busy) == dict.fromkeys(range(2, 6), (0, 0, 0.5, 1))
    assert busy.query_boxes == (None,) * 6


def test_boxes_of_queries_are_what_is_searched_for(tmp_path: Path) -> None:
    box = (0.0, 0.0, 1.0, 1.0)
    both = Labels(tmp_path, ("a", "b"), ("x", "x"), None, (box, None))
    assert both.query_boxes == (box, None)
    roles = Labels(tmp_path, ("a", "b"), ("x", "x"), ("query", "index"), (box, box))
    assert roles.query_boxes == (box, None)


@pytest.mark.slow
def test_every_ranking_is_measured_on_a_drawn_collection(tmp_path: Path) -> None:
    drawn = draw_collection(tmp_path / "c", things=3, views=4, size=112, workers=1, clutter=True)
    command = [
        "evaluate",
        "pretrained:efficientnet_lite0",
        "--labels",
        str(drawn / "labels.csv"),
        "--size",
        "96",
    ]
    for extra in (
        ["--ranking", "regions", "--region-size", "224"],
        ["--local", "on"],
        ["--ranking", "regions", "--local", "on"],
    ):
        result = CliRunner().invoke(app, [*command, *extra])
        assert result.exit_code == 0, result.output
        assert "mAP" in result.output
        if "regions" in extra:  # what matched points find depends on the drawing
            assert "mean IoU" in result.output


def test_rankings_by_parts_are_not_for_protocols(tmp_path: Path) -> None:
    command = [
        "evaluate",
        "pretrained:efficientnet_lite0",
        "--protocol",
        "roxford5k",
        "--root",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, [*command, "--ranking", "regions"])
    assert isinstance(result.exception, UserError)
    assert "measured with --labels" in str(result.exception)

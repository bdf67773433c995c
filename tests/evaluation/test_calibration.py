"""Calibration of scores: by hand on a few matches, against a slow implementation, and on a whole collection."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from insclr.data.labels import Labels
from insclr.evaluation.calibration import (
    ANSWERS,
    expected_calibration_error,
    f1,
    measure_calibration,
    reliability,
)
from insclr.evaluation.evaluate import evaluate_labels
from insclr.retrieval.score import DISPLAY_THRESHOLD, fit_score_curve
from insclr.store import IndexedImage, StoreInfo, create_store


def collection(things: int, views: int, spread: float) -> tuple[np.ndarray, Labels]:
    generator = np.random.default_rng(0)
    instances = np.repeat(np.arange(things), views)
    rows = generator.standard_normal((things, 16))[instances]
    rows = rows + spread * generator.standard_normal(rows.shape)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    paths = tuple(f"{i}.jpg" for i in range(len(rows)))
    return rows, Labels(Path("photos"), paths, tuple(map(str, instances)))


def test_bins_have_equal_counts_and_the_error_is_their_weighted_distance() -> None:
    scores = np.array([0.1, 0.9, 0.2, 0.8])
    right = np.array([False, True, True, True])
    low, high = reliability(scores, right, bins=2)
    assert (low.pairs, low.score, low.right) == (2, pytest.approx(0.15), 0.5)
    assert (high.pairs, high.score, high.right) == (2, pytest.approx(0.85), 1.0)
    # (2 * |0.15 - 0.5| + 2 * |0.85 - 1|) / 4
    assert expected_calibration_error((low, high)) == pytest.approx(0.25)


def test_fewer_matches_than_bins_and_none_at_all() -> None:
    bins = reliability(np.array([0.3, 0.7]), np.array([False, True]))
    assert [one.pairs for one in bins] == [1, 1]
    assert expected_calibration_error(bins) == pytest.approx(0.3)
    assert expected_calibration_error(reliability(np.empty(0), np.empty(0, dtype=bool))) == 0


def test_f1_by_hand() -> None:
    # 4 found, 3 of them right, 6 wanted: precision 3/4, recall 1/2, F1 = 2 * 3/8 / (5/4) = 0.6.
    assert f1(4, 3, 6) == pytest.approx(60)
    assert f1(0, 0, 0) == 0


def test_agrees_with_a_slow_implementation(tmp_path: Path) -> None:
    rows, labels = collection(12, 8, 0.6)
    measured, _ = measure_calibration(rows, labels)
    store = create_store(tmp_path / "s", StoreInfo("m", "f", 16, tmp_path))
    store.upsert([IndexedImage(path, path, 1, 1) for path in labels.paths], rows)
    curve = fit_score_curve(store)
    first: list[tuple[float, bool]] = []
    every: list[tuple[float, bool]] = []
    for query in range(len(rows)):
        found = sorted(
            (-float(rows[query] @ rows[other]), labels.instances[other] == labels.instances[query])
            for other in range(len(rows))
            if other != query
        )
        pairs = [(float(curve.score(np.array([-cosine]))[0]), same) for cosine, same in found]
        first += pairs[:50]
        every += pairs
    first.sort(key=lambda pair: pair[0])
    size = len(first) / 10
    parts = [first[round(i * size) : round((i + 1) * size)] for i in range(10)]
    error = sum(abs(sum(score for score, _ in part) - sum(same for _, same in part)) for part in parts) / len(
        first
    )
    assert measured.ece == pytest.approx(error, abs=5e-3)  # the store's half precision
    wanted = sum(same for _, same in every)
    cuts = {score for score, _ in every}

    def f1_at(cut: float) -> float:
        above = [same for score, same in every if score >= cut]
        return 200 * sum(above) / (len(above) + wanted)

    assert measured.line_f1 == pytest.approx(f1_at(DISPLAY_THRESHOLD), abs=0.7)
    assert measured.best_f1 == pytest.approx(max(map(f1_at, sorted(cuts)[::7])), abs=0.7)
    above = [same for score, same in every if score >= DISPLAY_THRESHOLD]
    assert measured.line_precision == pytest.approx(100 * sum(above) / len(above), abs=0.7)
    assert measured.line_recall == pytest.approx(100 * sum(above) / wanted, abs=0.7)


@pytest.mark.parametrize(("views", "spread"), [(4, 0.3), (12, 0.5), (30, 0.7)])
def test_answers_calibrate_the_score(views: int, spread: float) -> None:
    rows, labels = collection(40, views, spread)
    measured, answered = measure_calibration(rows, labels)
    assert answered.ece <= 0.08
    assert answered.ece < measured.ece <= 0.3
    assert answered.line_f1 >= 0.85 * answered.best_f1


def test_a_collection_of_twins_and_a_tiny_one_are_measured() -> None:
    for things, views in ((1, 40), (2, 2)):
        rows, labels = collection(things, views, 0.0)
        for measured in measure_calibration(rows, labels):
            numbers = [value for value in measured.to_json().values() if isinstance(value, float)]
            assert np.isfinite(numbers).all()


def test_a_result_reports_the_score_in_json_and_table() -> None:
    rows, labels = collection(20, 6, 0.4)
    assert "ece" not in evaluate_labels(rows, labels).to_json()
    calibration, answered = measure_calibration(rows, labels)
    result = replace(evaluate_labels(rows, labels), calibration=calibration, answered=answered)
    values = json.loads(json.dumps(result.to_json()))
    assert {"ece", "line_precision", "line_recall", "line_f1", "best_f1", "reliability"} <= values.keys()
    assert len(values["reliability"]) == 10
    assert values[f"with_{ANSWERS}_answers"]["ece"] <= 0.08
    assert "expected calibration error" in result.table()

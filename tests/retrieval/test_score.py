"""The calibrated score agrees with labels it has never seen."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.vector_search import search_vectors
from insclr.feedback.entries import name_thing
from insclr.feedback.feedback import read_known
from insclr.options import SearchOptions
from insclr.retrieval.score import (
    DISPLAY_THRESHOLD,
    LIKELY,
    SURE,
    UNCALIBRATED,
    Answer,
    agreements,
    answers_from_column,
    calibrate_from_answers,
    calibrate_store,
    fit_answers,
    fit_score_curve,
    score_curve_of,
)
from insclr.retrieval.score_after_learning import draw_decided_pairs, keep_share_of_sure
from insclr.store import IndexedImage, Store, StoreInfo, create_store


def store_of(vectors: np.ndarray, folder: Path) -> Store:
    store = create_store(folder, StoreInfo("m", "f", vectors.shape[1], folder))
    store.upsert([IndexedImage(f"{i}.jpg", str(i), 1, 1) for i in range(len(vectors))], vectors)
    return store


def things(count: int, views: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around `count` centres in 16 dimensions: the larger the spread, the more things overlap."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((count, 16))
    labels = np.repeat(np.arange(count), views)
    vectors = centres[labels] + spread * generator.standard_normal((count * views, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def top_pairs(vectors: np.ndarray, labels: np.ndarray, top: int = 30) -> tuple[np.ndarray, np.ndarray]:
    cosine = vectors @ vectors.T
    np.fill_diagonal(cosine, -2)
    near = np.argsort(-cosine, axis=1)[:, :top]
    return np.take_along_axis(cosine, near, axis=1).ravel(), (labels[near] == labels[:, None]).ravel()


@pytest.mark.parametrize("spread", [0.3, 0.5, 0.7])
def test_the_bands_keep_their_word(tmp_path: Path, spread: float) -> None:
    vectors, labels = things(60, 20, spread)
    curve = fit_score_curve(store_of(vectors, tmp_path / "s"))
    similarities, same = top_pairs(vectors, labels)
    scores = curve.score(similarities)
    assert same[scores >= SURE].mean() >= 0.8
    assert same[scores >= DISPLAY_THRESHOLD].mean() >= 0.5
    assert same[scores < DISPLAY_THRESHOLD].mean() <= 0.35


def test_a_collection_without_instances_has_next_to_no_sure_matches(tmp_path: Path) -> None:
    vectors, _ = things(800, 1, 0.1)
    curve = fit_score_curve(store_of(vectors, tmp_path / "s"))
    similarities, _ = top_pairs(vectors, np.zeros(800))
    assert (curve.score(similarities) >= LIKELY).mean() <= 0.01


def test_the_score_rises_with_similarity_from_zero_to_one(tmp_path: Path) -> None:
    curve = fit_score_curve(store_of(things(30, 10, 0.4)[0], tmp_path / "s"))
    scores = curve.score(np.linspace(-1, 1, 201, dtype=np.float32))
    assert scores[0] == 0
    assert scores[-1] == pytest.approx(1, abs=0.01)
    assert (np.diff(scores) >= 0).all()
    assert curve.score(np.array([curve.cutoff], dtype=np.float32))[0] == pytest.approx(
        DISPLAY_THRESHOLD, abs=1e-3
    )


def test_the_agreement_of_a_pair_is_what_one_counts_by_hand() -> None:
    # Query 0 has the nearest 1 2 3 4. Result 1 has 2 0 3 9: without the query 2 3 9. Result 5 has 6 7 8 9.
    own, results = np.array([1, 2, 3, 4]), np.array([1, 5])
    theirs = np.array([[2, 0, 3, 9], [6, 7, 8, 9]])
    # Size 2: {1, 2} and {1, 2} agree in 2 of 2, {1, 2} and {5, 6} in 0. Chance, of 20 rows: 2 / 20.
    assert agreements(0, own, results, theirs, [2], rows=20) == pytest.approx([1.0, (0 - 0.1) / 0.9])
    # Size 4: {1, 2, 3, 4} and {1, 2, 3, 9} agree in 3 of 4. Chance: 4 / 20.
    both = agreements(0, own, results, theirs, [2, 4], rows=20)
    assert both[0] == pytest.approx((1.0 + (0.75 - 0.2) / 0.8) / 2)


def test_unrelated_rows_beside_a_collection_change_its_scores_little(tmp_path: Path) -> None:
    vectors, _ = things(40, 12, 0.4)
    generator = np.random.default_rng(5)
    strangers = generator.standard_normal((120, 16)).astype(np.float32)
    strangers /= np.linalg.norm(strangers, axis=1, keepdims=True)
    at = np.linspace(0.5, 1, 26, dtype=np.float32)
    alone = fit_score_curve(store_of(vectors, tmp_path / "a")).score(at)
    beside = fit_score_curve(store_of(np.concatenate([vectors, strangers]), tmp_path / "b")).score(at)
    assert np.abs(alone - beside).mean() <= 0.1


def test_bands_begin_at_their_scores_and_maybe_further_down_before_there_are_answers() -> None:
    scores = (1.0, 0.8, 0.79, 0.25, 0.24, 0.05, 0.04, 0.0)
    names = [UNCALIBRATED.band(one) for one in scores]
    assert names == ["sure", "sure", "maybe", "maybe", "maybe", "maybe", "other", "other"]
    names = [replace(UNCALIBRATED, answers=100).band(one) for one in scores]
    assert names == ["sure", "sure", "maybe", "maybe", "other", "other", "other", "other"]


def test_the_same_collection_gives_the_same_calibration(tmp_path: Path) -> None:
    store = store_of(things(20, 10, 0.4)[0], tmp_path / "s")
    assert fit_score_curve(store) == fit_score_curve(store)


@pytest.mark.parametrize("count", [1, 3, 7, 9, 20])
def test_small_and_uniform_collections_still_have_a_score(tmp_path: Path, count: int) -> None:
    for name, vectors in (
        ("random", things(count, 1, 0.1)[0]),
        ("equal", np.repeat(things(1, 1, 0.1)[0], count, axis=0)),
    ):
        curve = calibrate_store(store_of(vectors, tmp_path / name))
        scores = curve.score(np.linspace(-1, 1, 21, dtype=np.float32))
        assert np.isfinite(scores).all()
        assert (np.diff(scores) >= 0).all()
        assert scores[-1] == pytest.approx(1, abs=0.01)


def test_the_calibration_is_kept_and_made_anew_when_the_rows_change(tmp_path: Path) -> None:
    vectors = things(30, 10, 0.4)[0]
    store = store_of(vectors[:200], tmp_path / "s")
    assert score_curve_of(store) == UNCALIBRATED
    first = calibrate_store(store)
    assert score_curve_of(store) == first == calibrate_store(store)
    store.upsert([IndexedImage(f"{i}.jpg", str(i), 1, 1) for i in range(300)], vectors)
    assert calibrate_store(store).rows == 300


def test_a_store_of_an_older_version_answers_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_of(things(30, 10, 0.4)[0], tmp_path / "s")
    old = {"similarities": [0.1, 0.5, 1.0], "scores": [0.0, 0.5, 1.0], "rows": 300, "pairs": 9}
    store.set_note("calibration", json.dumps(old))
    assert score_curve_of(store).score(np.array([0.5], dtype=np.float32))[0] == pytest.approx(0.5)
    assert "another version" in caplog.text
    assert calibrate_store(store).similarities != (0.1, 0.5, 1.0)
    store.set_note("calibration", '{"similarities": 3}')
    assert score_curve_of(store) == UNCALIBRATED


def test_answers_move_the_log_odds_as_platt_scaling_does() -> None:
    # A score of one half that is right in 80 of 100 answers: its log-odds move by log(80 / 20) = 1.386.
    scale, offset = fit_answers(np.full(100, 0.5), np.arange(100) < 80)
    assert offset == pytest.approx(np.log(4), abs=0.02)
    assert scale == pytest.approx(1, abs=0.01)
    # Two answers hardly move anything far, even if they agree.
    assert abs(fit_answers(np.full(2, 0.5), np.array([True, True]))[1]) < 2.5


@pytest.mark.parametrize("truth", ["half", "none"])
def test_answers_bring_the_score_to_the_truth(tmp_path: Path, truth: str) -> None:
    vectors, labels = things(60, 20, 0.4)
    # Twice as many instances as groups: of the matches of a group half are right. Or all are wrong.
    generator = np.random.default_rng(1)
    labels = 2 * labels + generator.integers(0, 2, len(labels)) if truth == "half" else np.arange(len(labels))
    store = create_store(tmp_path / "s", StoreInfo("m", "f", 16, tmp_path))
    columns = [{"instance": str(label)} for label in labels]
    store.upsert([IndexedImage(f"{i}.jpg", str(i), 1, 1, columns[i]) for i in range(len(labels))], vectors)
    answers = answers_from_column(store, "instance", count=100)
    assert len(answers) == 100
    ids = {row.id: row.image.columns["instance"] for row in store.rows_by_path().values()}
    assert all(one.same == (ids[one.one] == ids[one.other]) for one in answers)
    similarities, same = top_pairs(vectors, labels)
    before = calibrate_store(store)
    after = calibrate_from_answers(store, answers)
    assert after.answers == 100
    assert abs(after.score(similarities).mean() - same.mean()) <= 0.08
    assert abs(before.score(similarities).mean() - same.mean()) > abs(
        after.score(similarities).mean() - same.mean()
    )
    assert (np.diff(after.score(np.linspace(-1, 1, 201, dtype=np.float32))) >= 0).all()
    assert score_curve_of(store) == after
    # What was learned stays when rows come.
    assert calibrate_store(store, always=True).offset == after.offset


def test_answers_about_rows_that_are_gone_are_left_out(tmp_path: Path) -> None:
    store = store_of(things(30, 10, 0.4)[0], tmp_path / "s")
    first = int(store.ids()[0])
    curve = calibrate_from_answers(store, [Answer(first, 10**9, True), Answer(first, first, True)])
    assert curve.answers == 0
    assert curve == fit_score_curve(store)
    assert answers_from_column(store, "none") == []


def test_a_cluster_store_carries_the_score_and_the_bands(milvus_uri: str, tmp_path: Path) -> None:
    vectors, labels = things(20, 8, 0.3)
    store = create_store(milvus_uri, StoreInfo("m", "f", 16, tmp_path))
    store.upsert([IndexedImage(f"{i}.jpg", str(i), 1, 1) for i in range(len(vectors))], vectors)
    curve = calibrate_store(store)
    assert score_curve_of(store) == curve
    own, *others = search_vectors(store, vectors[:1], SearchOptions(top=7), hashes=["0"])
    assert (own.is_query, own.path) == (True, "0.jpg")
    assert [labels[int(Path(one.path).stem)] for one in others] == [labels[0]] * 7
    assert others[0].band != "other"
    assert [one.score for one in others] == sorted((one.score for one in others), reverse=True)
    store.close()


def calibrated(vectors: np.ndarray, folder: Path) -> Store:
    store = store_of(vectors, folder)
    calibrate_store(store, always=True)
    return store


def pull_together(vectors: np.ndarray, strength: float) -> np.ndarray:
    """Every vector moved to the mean of its ten nearest, as training on mined pairs does: wrong ones come along."""
    near = np.argsort(-vectors @ vectors.T, axis=1)[:, :10]
    moved = (1 - strength) * vectors + strength * vectors[near].mean(1)
    return (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)


def sure(store: Store, vectors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The share of sure pairs, and of right ones among them."""
    similarities, right = top_pairs(vectors, labels, 50)
    found = score_curve_of(store).score(similarities) >= SURE
    return float(found.mean()), float(right[found].mean())


def test_a_model_that_agrees_with_itself_calls_no_more_sure_than_the_one_before(tmp_path: Path) -> None:
    vectors, labels = things(60, 20, 0.7)
    learned = pull_together(vectors, 0.8)
    before, after = calibrated(vectors, tmp_path / "before"), calibrated(learned, tmp_path / "after")
    share, right = sure(before, vectors, labels)
    alone, alone_right = sure(after, learned, labels)
    assert alone > 1.5 * share
    assert alone_right < right
    curve = keep_share_of_sure(before, after, read_known(before))
    share_after, right_after = sure(after, learned, labels)
    assert share_after == pytest.approx(share, abs=0.005)
    assert right_after >= right - 0.02
    assert (np.diff(curve.scores) > 0).all()
    assert keep_share_of_sure(before, after, read_known(before)) == curve  # repeated after a kill
    assert calibrate_store(after, always=True).sure_from == pytest.approx(curve.sure_from)


def test_pairs_that_people_decided_take_nothing_from_the_others(tmp_path: Path) -> None:
    vectors, labels = things(60, 20, 0.7)
    before, after = calibrated(vectors, tmp_path / "before"), calibrated(vectors, tmp_path / "after")
    for one in range(10):  # every photo of ten things is named
        before.append(
            name_thing(f"thing-{one}", f"name {one}", [str(i) for i in np.flatnonzero(labels == one)])
        )
    curve = keep_share_of_sure(before, after, read_known(before))
    # The same vectors: what is sure by score stays so, however much was named.
    assert curve.sure_from == pytest.approx(SURE, abs=0.01)


def test_stores_without_common_photos_keep_their_own_curve(tmp_path: Path) -> None:
    vectors, _ = things(20, 10, 0.5)
    before, after = calibrated(vectors[:1], tmp_path / "before"), calibrated(vectors, tmp_path / "after")
    own = score_curve_of(after)
    assert keep_share_of_sure(before, after, read_known(before)) == own


def test_pairs_that_people_decided_are_drawn_as_answers(tmp_path: Path) -> None:
    vectors, labels = things(6, 10, 0.3)
    store = calibrated(vectors, tmp_path / "s")
    assert draw_decided_pairs(store, read_known(store)) == []
    for one in range(2):
        store.append(
            name_thing(f"thing-{one}", f"name {one}", [str(i) for i in np.flatnonzero(labels == one)])
        )
    drawn = draw_decided_pairs(store, read_known(store))
    row_of = {path: row.id for path, row in store.rows_by_path().items()}
    label_of = {row_of[f"{i}.jpg"]: int(label) for i, label in enumerate(labels)}
    assert len(drawn) == 200  # of 380 pairs of the twenty named photos
    assert {same for _, _, same in drawn} == {True, False}
    assert all(same == (label_of[one] == label_of[other]) for one, other, same in drawn)
    assert all({label_of[one], label_of[other]} <= {0, 1} for one, other, _ in drawn)

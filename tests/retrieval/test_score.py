"""The calibrated score agrees with labels it has never seen."""

from pathlib import Path

import numpy as np
import pytest

from insclr.retrieval.score import UNCALIBRATED, calibrate_store, fit_score_curve, score_curve_of
from insclr.retrieval.store import IndexedImage, Store, StoreInfo, create_store


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
def test_a_score_of_one_half_is_right_about_every_other_time(tmp_path: Path, spread: float) -> None:
    vectors, labels = things(60, 20, spread)
    curve = fit_score_curve(store_of(vectors, tmp_path / "s"))
    similarities, same = top_pairs(vectors, labels)
    scores = curve.score(similarities)
    assert same[scores >= 0.9].mean() >= 0.85
    middle = (scores > 0.35) & (scores < 0.65)
    assert 0.25 <= same[middle].mean() <= 0.8
    assert same[scores < 0.1].mean() <= 0.25


def test_the_score_rises_with_similarity_from_zero_to_one(tmp_path: Path) -> None:
    curve = fit_score_curve(store_of(things(30, 10, 0.4)[0], tmp_path / "s"))
    scores = curve.score(np.linspace(-1, 1, 201, dtype=np.float32))
    assert scores[0] == 0
    assert scores[-1] == pytest.approx(1, abs=0.01)
    assert (np.diff(scores) >= 0).all()
    assert curve.score(np.array([curve.cutoff], dtype=np.float32))[0] == pytest.approx(0.5, abs=1e-3)


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

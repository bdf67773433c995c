"""How well photos fit a thing."""

import numpy as np

from insclr.feedback.joining import score_fit
from insclr.retrieval.score import ScoreCurve

CURVE = ScoreCurve((0.0, 1.0), (0.0, 1.0), rows=1, pairs=1)  # the score is the cosine


def test_a_photo_fits_by_its_three_most_similar_others() -> None:
    angles = np.radians([0, 10, 20, 60, 90])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    found = score_fit(rows, rows, CURVE)
    assert np.allclose(found[0], np.cos(np.radians([10, 20, 60])).mean(), atol=1e-6)
    assert np.allclose(found[4], np.cos(np.radians([30, 70, 80])).mean(), atol=1e-6)


def test_copies_do_not_count_and_a_photo_without_others_fits() -> None:
    rows = np.array([[1, 0], [1, 0], [0.6, 0.8]], dtype=np.float32)
    assert np.allclose(score_fit(rows[:1], rows, CURVE), 0.6, atol=1e-6)
    assert score_fit(rows[:1], rows[:2], CURVE).tolist() == [1.0]

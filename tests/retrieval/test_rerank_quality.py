"""Re-ranking must find what plain similarity misses: things spread along a curve."""

from pathlib import Path

import numpy as np
import pytest

from insclr.data.labels import Labels
from insclr.evaluation.evaluate import evaluate_labels
from insclr.retrieval.rerank import RERANKERS, diffusion


def two_moons(each=60, noise=0.05, seed=0):
    """Two half circles that reach into one another, lifted on a sphere; and their labels."""
    generator = np.random.default_rng(seed)
    turn = np.linspace(0, np.pi, each)
    first = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    second = np.stack([1 - np.cos(turn), 0.4 - np.sin(turn)], axis=1)
    flat = np.concatenate([first, second]) + noise * generator.normal(size=(2 * each, 2))
    rows = np.concatenate([flat - flat.mean(axis=0), np.full((2 * each, 1), 2.0)], axis=1)
    names = ("first",) * each + ("second",) * each
    labels = Labels(Path(), tuple(map(str, range(2 * each))), names)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def views_along_curves(things=12, views=15, dim=16, seed=0):
    """Pictures of a thing drift from one look to another: ends are far apart, neighbours are near."""
    generator = np.random.default_rng(seed)
    ends = generator.normal(size=(2, things, dim))
    along = np.linspace(0, 1, views)[:, None, None]
    rows = (1 - along) * ends[0] + along * ends[1] + 0.25 * generator.normal(size=(views, things, dim))
    rows = rows.reshape(-1, dim)
    names = tuple(f"thing {i % things}" for i in range(len(rows)))
    labels = Labels(Path(), tuple(map(str, range(len(rows)))), names)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("name", RERANKERS)
def test_map_rises_on_drifting_views(name):
    vectors, labels = views_along_curves()
    plain = evaluate_labels(vectors, labels).map
    assert evaluate_labels(vectors, labels, RERANKERS[name]).map > plain + 1


def test_diffusion_follows_each_moon():
    def local(queries, database, ranking):
        return diffusion(queries, database, ranking, k=6, query_k=3, gamma=50.0)

    vectors, labels = two_moons()
    plain = evaluate_labels(vectors, labels).map
    followed = evaluate_labels(vectors, labels, local).map
    assert plain < 85
    assert followed > 95

"""Each re-ranker against a literal slow version of its paper, and what holds for all of them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from insclr.errors import UserError
from insclr.options import SearchOptions
from insclr.retrieval import rerank
from insclr.retrieval.rerank import RERANKERS, Ranking, diffusion, rank


def unit(rows):
    rows = np.asarray(rows, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def cloud(count=40, dim=5, seed=0):
    """Random unit vectors with positive similarities, as pooled features have."""
    return unit(np.abs(np.random.default_rng(seed).normal(size=(count, dim))))


def order_of(scores, ids):
    """Ids by falling score, as a list."""
    return [int(i) for _, i in sorted(zip((-s for s in scores), ids, strict=True))]


def leave_one_out(database):
    return rank(database, database, own=np.arange(len(database)))


# All of them


@pytest.mark.parametrize("name", RERANKERS)
def test_the_same_ids_come_back_in_an_order_of_falling_scores(name):
    database = cloud(50)
    for before in (
        leave_one_out(database),
        rank(cloud(7, seed=1), database),
        rank(cloud(7), database, depth=8),
    ):
        queries = database if before.own is not None else cloud(7, seed=1)
        after = RERANKERS[name](queries, database, before)
        assert np.array_equal(np.sort(after.ids, axis=1), np.sort(before.ids, axis=1))
        assert np.isfinite(after.scores).all()
        assert (np.diff(after.scores, axis=1) <= 1e-6).all()


@pytest.mark.parametrize("name", RERANKERS)
def test_queries_are_independent_of_one_another(name):
    database, queries = cloud(50), cloud(6, seed=1)
    together = RERANKERS[name](queries, database, rank(queries, database))
    alone = RERANKERS[name](queries[3:4], database, rank(queries[3:4], database))
    assert together.ids[3].tolist() == alone.ids[0].tolist()


def test_the_names_are_listed_when_one_is_unknown():
    for name in ("magic", "alphaqe", "aqe", "dba", "egt", "kreciprocal", "dsm"):
        with pytest.raises(UserError, match=f"rerank cannot be '{name}': choose one of diffusion"):
            SearchOptions(rerank=name)  # type: ignore[arg-type]


# Rankings


def test_rank_settles_ties_by_the_lower_row_and_leaves_the_own_row_out():
    database = unit([[1, 0], [0, 1], [1, 0], [1, 1]])
    assert rank(database[:1], database).ids.tolist() == [[0, 2, 3, 1]]
    assert rank(database[:1], database, own=np.array([0])).ids.tolist() == [[2, 3, 1]]
    assert rank(database[:1], database, depth=1).ids.tolist() == [[0]]


def test_results_that_are_not_scored_keep_their_order_behind():
    before = Ranking(np.array([[4, 2, 7, 5]]), np.array([[0.9, 0.8, 0.7, 0.6]], dtype=np.float32))
    after = rerank.reorder(before, np.array([[-np.inf, 0.1, -np.inf, 0.3]], dtype=np.float32))
    assert after.ids.tolist() == [[5, 2, 4, 7]]
    assert after.scores[0].tolist() == pytest.approx([0.3, 0.1, 0.1, -0.1])


# Each against a slow version


def dense_diffusion(database, first, seeds, k, gamma, alpha, own=None):
    """Solve the linear system of the paper with a dense solver."""
    count = len(database)
    similar = (database @ database.T).astype(np.float64)
    near = [set([j for j in order_of(similar[i], range(count)) if j != i][:k]) for i in range(count)]
    affinity = np.zeros((count, count))
    for i in range(count):
        for j in near[i]:
            if i in near[j]:
                affinity[i, j] = max(similar[i, j], 0) ** gamma
    degree = np.maximum(affinity.sum(axis=1), 1e-12)
    normalised = affinity / np.sqrt(np.outer(degree, degree))
    if own is not None:
        normalised[own] = normalised[:, own] = 0
    y = np.zeros(count)
    y[first] = seeds
    return np.linalg.solve(np.eye(count) - alpha * normalised, y)


@pytest.mark.parametrize("inside", [False, True])
def test_diffusion_solves_the_papers_system(inside):
    database = cloud(40)
    queries = database if inside else cloud(5, seed=1)
    before = leave_one_out(database) if inside else rank(queries, database)
    after = diffusion(queries, database, before, k=8, query_k=4, gamma=2.0)
    for query in range(5):
        first = before.ids[query, :4]
        seeds = (database[first] @ queries[query]).astype(np.float64) ** 2
        f = dense_diffusion(database, first, seeds, 8, 2.0, 0.9, own=query if inside else None)
        reached = (f > 1e-9).sum()
        assert after.scores[query, :reached] == pytest.approx(f[after.ids[query, :reached]], abs=1e-5)
        behind = after.ids[query, reached:].tolist()
        assert behind == [i for i in before.ids[query].tolist() if i in behind]


def test_truncated_diffusion_works_on_the_querys_first_results_alone():
    database, queries = cloud(60), cloud(3, seed=1)
    before = rank(queries, database)
    settings: dict[str, Any] = {"k": 6, "query_k": 3, "gamma": 2.0}
    after = diffusion(queries, database, before, truncate=12, **settings)
    for query in range(3):
        kept = before.ids[query, :12]
        assert set(after.ids[query, :12].tolist()) == set(kept.tolist())
        assert after.ids[query, 12:].tolist() == before.ids[query, 12:].tolist()
    whole = diffusion(queries, database, before, truncate=60, **settings)
    assert not np.array_equal(whole.ids, after.ids)


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 1000), st.sampled_from(sorted(RERANKERS)))
def test_tiny_databases_and_repeated_images_are_no_trouble(count, distinct, seed, name):
    rows = np.random.default_rng(seed).normal(size=(distinct, 3))
    database = unit(rows[np.arange(count) % distinct])
    for before in (leave_one_out(database), rank(database, database)):
        after = RERANKERS[name](database, database, before)
        assert np.array_equal(np.sort(after.ids, axis=1), np.sort(before.ids, axis=1))
        assert np.isfinite(after.scores).all()

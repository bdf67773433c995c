"""Growing a query set, against the slow version."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from helpers.unit_rows import unit_rows
from insclr.mining.expand import (
    ExpandSettings,
    Expansion,
    anchor_only,
    compact,
    eligible_candidates,
    expand,
)


def slow_expand_one(
    queries: list[Tensor],
    candidates: list[Tensor],
    eligible: list[bool],
    *,
    sparsity: float | None,
    aggregate: str,
    choose: str,
    k: int,
    threshold: float,
    repeats: int,
) -> tuple[list[int], list[float], float]:
    """One tuple by the paper's words: all products anew in every repeat.

    Gives the repeat and S_set at the choice of every candidate, and how near any decision came to its limit.
    """
    query_set = list(queries)
    chosen_in, chosen_score, closest = [0] * len(candidates), [-math.inf] * len(candidates), math.inf
    for repeat in range(1, repeats + 1):
        ranked = []
        for i, candidate in enumerate(candidates):
            if not eligible[i] or chosen_in[i]:
                continue
            scores = [float((candidate * q).sum()) for q in query_set]  # step 1
            if sparsity is not None:
                closest = min([closest, *(abs(s - sparsity) for s in scores)])
                scores = [s for s in scores if s >= sparsity]  # phi
            if scores:
                set_score = sum(scores) / len(scores) if aggregate == "mean" else max(scores)  # psi
                ranked.append((set_score, i))
        ranked.sort(reverse=True)  # step 2: re-rank
        if choose == "threshold":
            closest = min([closest, *(abs(s - threshold) for s, _ in ranked)])
            picked = [(s, i) for s, i in ranked if s > threshold]
        else:
            picked = ranked[:k]
            if 0 < k < len(ranked):
                closest = min(closest, ranked[k - 1][0] - ranked[k][0])
        for set_score, i in picked:
            chosen_in[i], chosen_score[i] = repeat, set_score
            query_set.append(candidates[i])
    return chosen_in, chosen_score, closest


@given(
    seed=st.integers(0, 10**6),
    tuples=st.integers(1, 3),
    slots=st.integers(1, 4),
    pool=st.integers(1, 14),
    dim=st.integers(2, 5),
    sparsity=st.one_of(st.none(), st.floats(-0.5, 0.95)),
    aggregate=st.sampled_from(["mean", "max"]),
    choose=st.sampled_from(["topk", "threshold"]),
    k=st.integers(0, 6),
    threshold=st.floats(-0.5, 0.95),
    repeats=st.integers(1, 5),
)
def test_expansion_agrees_with_the_slow_version(
    seed: int, tuples: int, slots: int, pool: int, dim: int, **options: object
) -> None:
    features = unit_rows(seed, tuples, slots + pool, dim)
    queries, candidates = features[:, :slots], features[:, slots:]
    generator = torch.Generator().manual_seed(seed)
    in_query = torch.rand(tuples, slots, generator=generator) < 0.6
    in_query[:, 0] = True
    eligible = torch.rand(tuples, pool, generator=generator) < 0.8
    found = expand(queries, in_query, candidates, eligible, ExpandSettings(**options))  # type: ignore[arg-type]
    for t in range(tuples):
        repeat, score, closest = slow_expand_one(
            [q.double() for q, member in zip(queries[t], in_query[t], strict=True) if member],
            list(candidates[t].double()),
            eligible[t].tolist(),
            **options,  # type: ignore[arg-type]
        )
        assume(closest > 1e-5)
        assert found.repeat[t].tolist() == repeat
        assert found.positives[t].tolist() == [r > 0 for r in repeat]
        chosen = found.positives[t]
        assert torch.allclose(found.score[t][chosen], torch.tensor(score)[chosen], atol=1e-5)


def at_degrees(*angles: float) -> Tensor:
    """Points of the unit circle: their similarity is the cosine of the angle between them."""
    turn = torch.deg2rad(torch.tensor(angles))
    return torch.stack([turn.cos(), turn.sin()], dim=1)[None]  # (1, points, 2)


def mine(
    queries: Tensor,
    candidates: Tensor,
    **settings: object,
) -> Expansion:
    return expand(
        queries,
        torch.ones(queries.shape[:2], dtype=torch.bool),
        candidates,
        torch.ones(candidates.shape[:2], dtype=torch.bool),
        ExpandSettings(**({"k": 1, "repeats": 1, "threshold": 0.6} | settings)),  # type: ignore[arg-type]
    )


def test_repeat_two_reaches_an_image_that_repeat_one_cannot() -> None:
    # Anchor at 0 degrees, a pool of 6. phi = 0.8 reaches 36.9 degrees: from the anchor only 20 and 30;
    # from 30 it is 60; 60 then reaches 90. The far ones (150, 200) are never within reach.
    pool = at_degrees(20, 30, 60, 90, 150, 200)
    for repeats, expected in ((1, [1, 1, 0, 0, 0, 0]), (2, [1, 1, 2, 0, 0, 0]), (3, [1, 1, 2, 3, 0, 0])):
        found = mine(at_degrees(0), pool, sparsity=0.8, aggregate="max", k=2, repeats=repeats)
        assert found.repeat[0].tolist() == expected


def test_phi_can_leave_an_iteration_without_positives() -> None:
    # k = 2, but phi leaves one candidate in repeat 1 and none in repeat 2: fewer than k, then nothing more.
    found = mine(at_degrees(0), at_degrees(10, 80, 120), sparsity=0.6, k=2, repeats=4)
    assert found.repeat[0].tolist() == [1, 0, 0]
    full = mine(at_degrees(0), at_degrees(10, 80, 120), sparsity=None, k=2, repeats=4)
    assert full.repeat[0].tolist() == [1, 1, 2]


def test_phi_keeps_a_score_that_equals_it() -> None:
    query, candidate = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.5, 0.5]]])
    assert mine(query, candidate, sparsity=0.5).positives.item()
    assert not mine(query, candidate, sparsity=0.5000001).positives.item()


def test_max_and_mean_pick_differently() -> None:
    # Query set at 0 and 90 degrees. The candidate at 5 is very near one member (max 0.996, mean 0.542); that
    # at 45 is fairly near both (max and mean 0.707).
    queries, pool = at_degrees(0, 90), at_degrees(5, 45)
    by_max = mine(queries, pool, aggregate="max")
    by_mean = mine(queries, pool, aggregate="mean")
    assert by_max.positives[0].tolist() == [True, False]
    assert by_mean.positives[0].tolist() == [False, True]
    assert by_max.score[0, 0].item() == pytest.approx(0.99619, abs=1e-5)
    assert by_mean.score[0].tolist() == pytest.approx([0.54168, 0.70711], abs=1e-5)


def test_phi_with_mean_forgives_the_members_a_candidate_does_not_resemble() -> None:
    queries, pool = at_degrees(0, 90), at_degrees(5, 45)
    assert mine(queries, pool, sparsity=0.6).positives[0].tolist() == [True, False]


def test_a_score_equal_to_the_threshold_is_not_chosen() -> None:
    query, candidate = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.5, 0.5]]])
    assert not mine(query, candidate, choose="threshold", threshold=0.5).positives.any()
    assert mine(query, candidate, choose="threshold", threshold=0.4999).positives.all()


def test_equal_candidates_go_by_pool_rank() -> None:
    twin = at_degrees(20, 20, 20, 20)
    found = mine(at_degrees(0), twin, k=1, repeats=3)
    assert found.repeat[0].tolist() == [1, 2, 3, 0]


def test_unchosen_candidates_show_their_last_score_and_unreachable_ones_none() -> None:
    found = mine(at_degrees(0), at_degrees(10, 60, 120), sparsity=0.4, k=1)
    assert found.score[0].tolist() == pytest.approx([0.98481, 0.5, -math.inf], abs=1e-5)


def test_anchor_mode_starts_from_the_anchor_alone() -> None:
    in_query = torch.tensor([[True, True, False], [True, False, True]])
    assert anchor_only(in_query).tolist() == [[True, False, False]] * 2


def test_the_tuples_own_images_are_no_candidates() -> None:
    pool_ids = torch.tensor([[7, 3, 9], [3, 7, 1]], dtype=torch.int32)
    tuple_ids = torch.tensor([[0, 7, 9], [2, 3, 4]])
    assert eligible_candidates(pool_ids, tuple_ids).tolist() == [[False, True, False], [False, True, True]]


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4))
def test_compact_moves_the_marked_columns_to_the_left(rows: list[list[bool]]) -> None:
    columns, real = compact(torch.tensor(rows))
    assert columns.shape[1] == max(sum(row) for row in rows)
    for t, row in enumerate(rows):
        assert columns[t][real[t]].tolist() == [i for i, marked in enumerate(row) if marked]

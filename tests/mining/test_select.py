"""Selection in a tuple, against the slow version."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from helpers.unit_rows import unit_rows
from insclr.mining.expand import (
    Strategy,
    decision_similarities,
    query_set,
    select_in_batch,
    tuple_similarities,
)


def slow_cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def slow_selection(
    strategy: str, plain: Tensor, augmented: Tensor, scales: list[Tensor], threshold: float
) -> tuple[list[list[bool]], float]:
    """The five strategies one image at a time; also how near any decision came to its threshold."""
    selected, closest = [], math.inf
    for t in range(len(plain)):
        if strategy == "multiscale":
            views = [
                [sum(s[t, m, d].item() for s in scales) for d in range(s.shape[2])]
                for s in scales[:1]
                for m in range(s.shape[1])
            ]
        else:
            views = (augmented if strategy == "augmented" else plain)[t].tolist()
        similarities = [slow_cosine(views[0], view) for view in views[1:]]
        if strategy == "relative":
            similarities = (
                [s / max(similarities) for s in similarities]
                if max(similarities) > 0
                else [-1.0] * len(similarities)
            )
        if strategy == "nn":
            selected.append([True] * len(similarities))
        else:
            selected.append([s > threshold for s in similarities])
            closest = min([closest, *(abs(s - threshold) for s in similarities)])
    return selected, closest


@pytest.mark.parametrize("strategy", get_args(Strategy))
@given(
    seed=st.integers(0, 10**6),
    tuples=st.integers(1, 4),
    neighbours=st.integers(1, 5),
    threshold=st.floats(-0.5, 0.99),
)
def test_selection_agrees_with_the_slow_version(
    strategy: str, seed: int, tuples: int, neighbours: int, threshold: float
) -> None:
    views = unit_rows(seed, 4, tuples, 1 + neighbours, 3)
    plain, augmented, scales = views[0], views[1], list(views[1:])
    expected, closest = slow_selection(strategy, plain, augmented, scales, threshold)
    assume(closest > 1e-5)
    similarities = decision_similarities(strategy, plain=plain, augmented=augmented, scales=scales)
    assert select_in_batch(strategy, similarities, threshold).tolist() == expected


def test_a_similarity_equal_to_the_threshold_is_not_selected() -> None:
    similarities = torch.tensor([[0.5, 0.75, 0.25]])
    assert select_in_batch("plain", similarities, 0.5).tolist() == [[False, True, False]]


def test_relative_selection_follows_the_best_of_the_tuple() -> None:
    similarities = torch.tensor([[0.4, 0.3, 0.1], [0.9, 0.3, 0.1]])
    assert select_in_batch("relative", similarities, 0.65).tolist() == [
        [True, True, False],
        [True, False, False],
    ]


def test_relative_selection_takes_nobody_where_nobody_resembles_the_anchor() -> None:
    similarities = torch.tensor([[-0.4, -0.2], [0.0, -0.2]])
    assert not select_in_batch("relative", similarities, 0.65).any()
    assert not select_in_batch("relative", similarities, -1.0).any()


def test_multiscale_averages_descriptors_not_similarities() -> None:
    # The anchor is e1 at both scales, the neighbour e1 at one and e2 at the other: its mean is at 45 degrees.
    e1, e2 = torch.eye(2)
    scales = [torch.stack([e1, e1])[None], torch.stack([e1, e2])[None]]
    similarities = decision_similarities("multiscale", scales=scales)
    assert similarities.item() == pytest.approx(math.sqrt(0.5), abs=1e-6)


def test_the_query_set_is_the_anchor_and_the_selected() -> None:
    assert query_set(torch.tensor([[True, False], [False, False]])).tolist() == [
        [True, True, False],
        [True, False, False],
    ]


def test_similarities_are_those_of_the_anchor() -> None:
    e1, e2 = torch.eye(2)
    assert tuple_similarities(torch.stack([e1, e2, e1])[None]).tolist() == [[0, 1]]

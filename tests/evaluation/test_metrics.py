"""Check values by hand from the protocols' definitions, and properties any metric must have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insclr.evaluation.protocol import (
    ap_at,
    mean_precision,
    precision_at,
    ranks_in_scores,
    ranks_of,
    trapezoid_ap,
    without_junk,
)


def ranks(*values):
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("positive_ranks", "positives", "expected"),
    [((0, 2, 5), 3, 0.677778), ((1,), 1, 0.25), ((9,), 1, 0.05), ((0,), 2, 0.5)],
)
def test_trapezoid_ap_by_hand(positive_ranks, positives, expected):
    assert trapezoid_ap(ranks(*positive_ranks), positives) == pytest.approx(expected, abs=1e-6)


def test_junk_is_taken_out_of_the_ranking():
    assert without_junk(ranks(0, 2, 6, 10, 20), ranks(1, 8, 9, 30)).tolist() == [0, 1, 5, 7, 17]


@pytest.mark.parametrize(
    ("positives", "junk", "ap", "precisions"),
    [
        ([3, 1], [7, 0, 5, 8], 0.791667, (1, 2 / 3, 2 / 3)),  # Easy
        ([3, 1, 5, 8], [7, 0], 0.835417, (1, 0.6, 2 / 3)),  # Medium
        ([5, 8], [7, 0, 3, 1], 0.708333, (1, 0.5, 0.5)),  # Hard
    ],
)
def test_easy_medium_hard_on_one_ranking(positives, junk, ap, precisions):
    ranking = ranks(7, 3, 0, 5, 9, 1, 2, 8, 4, 6)
    found = without_junk(ranks_of(np.array(positives), ranking), ranks_of(np.array(junk), ranking))
    assert trapezoid_ap(found, len(positives)) == pytest.approx(ap, abs=1e-6)
    assert [precision_at(found, k) for k in (1, 5, 10)] == pytest.approx(precisions)


def test_leave_one_out_ap_is_the_mean_of_the_precision_at_each_positive():
    assert mean_precision(ranks(0, 2, 5), 3) == pytest.approx((1 + 2 / 3 + 3 / 6) / 3)


def test_ap_at_100_over_four_queries():
    truth = {"q1": {"a", "b"}, "q2": {"a"}, "q3": {"c", "d", "e"}, "q4": {"c"}}
    answers = {"q2": ["z", "a"], "q3": ["d"], "q4": ["c", "d"]}
    for k, expected in ((100, 0.458333), (1, 0.5)):
        mean = sum(ap_at(answers.get(q, []), positives, k) for q, positives in truth.items()) / 4
        assert mean == pytest.approx(expected, abs=1e-6)


def test_a_duplicate_prediction_keeps_its_rank_but_counts_once():
    assert ap_at(["x", "a", "x", "b", "y"], {"a", "b", "c"}) == pytest.approx(1 / 3)
    assert ap_at(["a", "a"], {"a", "b"}) == pytest.approx(0.5)


def test_no_positive_found_is_zero():
    assert trapezoid_ap(ranks(), 3) == mean_precision(ranks(), 3) == precision_at(ranks(), 5) == 0


def test_ties_go_against_the_positives():
    same = np.zeros(3, dtype=np.float32)
    assert ranks_in_scores(same[:2], same).tolist() == [3, 4]


rank_sets = st.sets(st.integers(0, 200), min_size=1, max_size=40).map(lambda s: np.array(sorted(s)))


@given(rank_sets)
def test_ap_is_between_zero_and_one_and_one_only_for_the_perfect_ranking(found):
    perfect = bool(found[-1] == len(found) - 1)
    for metric in (trapezoid_ap, mean_precision):
        value = metric(found, len(found))
        assert 0 < value <= 1
        assert (value == pytest.approx(1, abs=1e-12)) == perfect


@given(rank_sets, st.data())
def test_moving_a_positive_forward_never_lowers_ap(found, data):
    free = sorted(set(range(int(found[-1]))) - set(found.tolist()))
    if not free:
        return
    target = data.draw(st.sampled_from(free))
    later = [r for r in found.tolist() if r > target]
    moved = np.array(sorted({*found.tolist(), target} - {later[0]}))
    for metric in (trapezoid_ap, mean_precision):
        assert metric(moved, len(moved)) >= metric(found, len(found)) - 1e-12


@given(rank_sets, st.sets(st.integers(0, 200), max_size=40))
def test_junk_ranks_equal_those_of_a_ranking_without_junk(positives, junk):
    junk = junk - set(positives.tolist())
    left = [i for i in range(201) if i not in junk]
    expected = [left.index(p) for p in positives]
    assert without_junk(positives, np.array(sorted(junk), dtype=np.int64)).tolist() == expected


scores = st.lists(st.integers(0, 8).map(float), min_size=1, max_size=30)


@given(scores, scores)
def test_ranks_in_scores_equal_those_of_a_pessimistic_sort(positives, negatives):
    everything = [(-s, 1) for s in positives] + [(-s, 0) for s in negatives]
    expected = [i for i, (_, positive) in enumerate(sorted(everything)) if positive]
    found = ranks_in_scores(np.array(positives, np.float32), np.sort(np.array(negatives, np.float32)))
    assert found.tolist() == expected

"""Which photos join a thing by themselves, and which groups are mixed: two things in one."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage

from insclr.arrays import Descriptors
from insclr.retrieval.score import ScoreCurve
from insclr.store import Store

_FALSE_JOINS = 0.05  # expected share of wrong ones among the photos that join by themselves
_NEAREST, _VOTES = 5, 3  # of a photo's five nearest, three must be of the thing
_BEST = 3  # photos of a thing whose mean similarity counts
_MOST_SEEN = 2000  # photos that false joins are estimated from
_FROM_A_THING = 50
# A group is mixed if so many photos are expected to be wrong: the smaller of two parts, times the probability that
# the parts show different things. Chosen on products60 and monuments24 (docs/research/results-search.md).
_WRONG, _WRONG_SHARE = 2.0, 0.25
_LEAST, _LEAST_SHARE = 4, 0.1  # photos of a group that is judged; share of its smaller part
_BLOCK = 1024
_COPY = 1 - 1e-3  # similarity above which a photo is the same or a copy
_MOST_LINKED = 1500  # photos of a group that are compared each with each


def find_joins(
    store: Store, candidates: Mapping[int, str], members: Mapping[str, Sequence[int]], others: int
) -> set[int]:
    """The candidates (row: thing) that join without a person: at most one in twenty is expected to be wrong.

    `members` are the rows that people put into things, `others` is the number of rows that are in none. How often a
    photo is as similar to a thing that it does not show follows from the members of other things. Where these are too
    few to know, no row joins.
    """
    things = [thing for thing, rows in members.items() if len(rows) >= _BEST]
    if len(things) < 2 or not candidates:
        return set()
    rows = [list(members[thing][:_FROM_A_THING]) for thing in things]
    flat = np.array([row for some in rows for row in some], dtype=np.int64)
    thing_of = np.repeat(np.arange(len(things)), [len(some) for some in rows])  # (members,)
    descriptors = store.descriptors(flat).astype(np.float32)
    ids = np.array([row for row, thing in candidates.items() if thing in things], dtype=np.int64)
    wanted = np.array([things.index(candidates[int(row)]) for row in ids], dtype=np.int64)
    if not len(ids):
        return set()
    own = _similarity(store.descriptors(ids), descriptors, thing_of)[np.arange(len(ids)), wanted]
    own[~_is_voted(store, ids, [set(members[things[thing]]) for thing in wanted])] = -1.0
    seen = np.random.default_rng(0).permutation(len(flat))[:_MOST_SEEN]
    wrong = _similarity(descriptors[seen], descriptors, thing_of)
    wrong[np.arange(len(seen)), thing_of[seen]] = -1.0  # as if the photo's own thing had no name
    reached = np.sort(wrong.max(1))
    order = np.argsort(-own, kind="stable")
    order = order[own[order] > 0]
    above = len(reached) - np.searchsorted(reached, own[order])
    expected = others * (above + 1) / (len(reached) + 1)
    allowed = np.flatnonzero(expected <= _FALSE_JOINS * np.arange(1, len(order) + 1))
    return set(ids[order[: allowed[-1] + 1]].tolist()) if len(allowed) else set()


def _similarity(rows: Descriptors, members: Descriptors, thing_of: NDArray[np.int64]) -> NDArray[np.float32]:
    """The mean similarity (rows, things) to the most similar photos of each thing, the row itself not among them."""
    similar = rows.astype(np.float32) @ members.T
    similar[similar > _COPY] = -1.0  # the row itself, or a copy
    ends = np.flatnonzero(np.diff(thing_of)) + 1
    return np.stack(
        [np.sort(part, axis=1)[:, -_BEST:].mean(1) for part in np.split(similar, ends, axis=1)], axis=1
    )


def score_fit(rows: Descriptors, members: Descriptors, curve: ScoreCurve) -> NDArray[np.float64]:
    """How likely each row (R, dim) shows a thing, by its most similar photos in it (N, dim); (R,).

    The row itself and copies of it do not count; 1 where there is no other photo.
    """
    found = np.ones(len(rows))
    for start in range(0, len(rows), _BLOCK):
        similar = rows[start : start + _BLOCK].astype(np.float32) @ members.astype(np.float32).T
        similar[similar > _COPY] = -np.inf
        best = -np.sort(-similar, axis=1)[:, :_BEST]
        there = np.isfinite(best)
        mean = np.where(there, best, 0).sum(1) / np.maximum(there.sum(1), 1)
        found[start : start + _BLOCK] = np.where(there.any(1), curve.score(mean), 1.0)
    return found


def _is_voted(store: Store, ids: NDArray[np.int64], things: Sequence[set[int]]) -> NDArray[np.bool_]:
    """Whether most of the nearest rows of each row are in its thing."""
    near = store.search(store.descriptors(ids), _NEAREST + 1).ids
    votes = [
        sum(one in thing for one in [int(one) for one in found if one != row][:_NEAREST])
        for row, found, thing in zip(ids, near, things, strict=True)
    ]
    return np.array(votes) >= _VOTES


def find_split(descriptors: Descriptors, curve: ScoreCurve) -> list[int]:
    """The places of the smaller of two parts of a group that probably show different things; empty if it is one."""
    count = len(descriptors)
    if count < _LEAST:
        return []
    some = descriptors[:_MOST_LINKED].astype(np.float32)
    small = _smaller_part(some)
    large = np.setdiff1d(np.arange(len(some)), small)
    between = float((some[small] @ some[large].T).mean())
    different = 1 - float(curve.score(np.array([between], dtype=np.float32))[0])
    if len(small) * different < min(_WRONG, _WRONG_SHARE * len(some)):
        return []
    rest = descriptors[_MOST_LINKED:]
    nearer = np.flatnonzero(rest @ some[small].mean(0) > rest @ some[large].mean(0)) + _MOST_LINKED
    return [*small.tolist(), *nearer.tolist()]


def _smaller_part(descriptors: Descriptors) -> NDArray[np.int64]:
    """The smaller part by average linkage; parts of single photos that are only far from all others do not count."""
    count = len(descriptors)
    distance = np.maximum(1 - (descriptors @ descriptors.T)[np.triu_indices(count, 1)], 0)
    joins = linkage(distance, "average")[:, :2].astype(np.int64)
    parts = [[place] for place in range(count)]
    for one, other in joins:
        parts.append(parts[one] + parts[other])
    least = max(2, round(_LEAST_SHARE * count))
    node = len(parts) - 1
    while node >= count:
        one, other = sorted(joins[node - count].tolist(), key=lambda part: len(parts[part]))
        if len(parts[one]) >= least:
            return np.sort(np.array(parts[one]))
        node = other
    return np.sort(np.array(min((parts[part] for part in joins[-1]), key=len)))

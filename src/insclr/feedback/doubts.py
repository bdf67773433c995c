"""Joins of groups that rest on a single answer which was not to be expected: worth asking about once more."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST = 0.003  # probability of a slip that is worth a second question


@dataclass(frozen=True)
class Doubt:
    """A join that may be a slip: the parts on one side of it, and how likely it is wrong."""

    side: frozenset[int]
    wrong: float


def doubtful_joins(joins: Sequence[tuple[int, int, float]]) -> list[Doubt]:
    """The joins (part, part, probability of a slip) that nothing else bears out.

    A join is borne out where its two parts are connected without it: a second answer, or a way through others.
    """
    near: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (one, other, _) in enumerate(joins):
        near[one].append((other, number))
        near[other].append((one, number))
    found = []
    for number, (one, other, wrong) in enumerate(joins):
        if wrong >= _LEAST and one != other:
            side = _reached(near, one, number)
            if other not in side:
                found.append(Doubt(frozenset(side), wrong))
    return found


def _reached(near: dict[int, list[tuple[int, int]]], start: int, without: int) -> set[int]:
    """The parts that are connected with `start`, without one of the joins."""
    reached, waiting = {start}, [start]
    while waiting:
        for other, number in near[waiting.pop()]:
            if number != without and other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached

"""Summarise the values of the user's own columns, from which the page offers filters."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from insclr.store import Row, Store
from insclr.store.where import number_of

MAX_ROWS_READ = 20_000  # from larger stores a sample
_MAX_CHOICES = 60
_MAX_VALUE = 200  # characters: longer texts are no choices


@dataclass(frozen=True)
class Column:
    """A column that a filter can use.

    `values` are all its values when it is a choice, the most frequent ones when it is a text; of `path` they are
    the folders. `low` and `high` are the ends of a number column.
    """

    name: str
    kind: Literal["number", "choice", "text"]
    values: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


def columns_of(store: Store) -> list[Column]:
    """The columns of a store, `path` first, those without any value left out."""
    ids = store.ids()
    whole = len(ids) <= MAX_ROWS_READ
    if not whole:
        ids = np.sort(np.random.default_rng(0).choice(ids, MAX_ROWS_READ, replace=False))
    rows = store.rows(ids.tolist())
    found = [_path_column(rows)]
    for name in store.columns():
        values = Counter(value for row in rows if (value := row.image.columns.get(name, "")))
        if values:
            found.append(_column(name, values, whole=whole))
    return found


def _path_column(rows: list[Row]) -> Column:
    folders = Counter(row.image.path.rpartition("/")[0] for row in rows)
    common = [f"{name}/" for name, _ in folders.most_common(_MAX_CHOICES) if name]
    return Column("path", "text", tuple(sorted(common)))


def _column(name: str, values: Counter[str], *, whole: bool) -> Column:
    numbers = [number_of(value) for value in values]
    if all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        return Column(name, "number", low=min(known), high=max(known))
    short = [value for value, _ in values.most_common(_MAX_CHOICES) if len(value) <= _MAX_VALUE]
    # A sample may miss a value: then all that is known is offered, and others can be typed.
    kind: Literal["choice", "text"] = "choice" if whole and len(short) == len(values) else "text"
    return Column(name, kind, tuple(sorted(short)))

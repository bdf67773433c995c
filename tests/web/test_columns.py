"""What can be chosen in a filter: each column's kind and values."""

from pathlib import Path

import numpy as np
import pytest

from insclr.store import IndexedImage, Store, StoreInfo, create_store
from insclr.web import served
from insclr.web.served import Column, columns_of


def store_of(folder: Path, rows: list[dict[str, str]]) -> Store:
    store = create_store(folder / "store", StoreInfo("m", "0123456789abcdef", 2, folder))
    images = [IndexedImage(f"a/{i}.jpg", f"{i:x}", 1, 1, values) for i, values in enumerate(rows)]
    store.upsert(images, np.tile(np.float32([1, 0]), (len(rows), 1)))  # type: ignore[arg-type]
    return store


def test_kinds_follow_the_values(tmp_path: Path) -> None:
    rows = [
        {"room": "attic", "year": "1900", "mixed": "1", "empty": ""},
        {"room": "cellar, left", "year": "-3.5", "mixed": "one", "empty": ""},
        {"room": "attic", "year": "", "mixed": "1"},
    ]
    assert columns_of(store_of(tmp_path, rows)) == [
        Column("path", "text", ("a/",)),
        Column("mixed", "choice", ("1", "one")),
        Column("room", "choice", ("attic", "cellar, left")),
        Column("year", "number", low=-3.5, high=1900),
    ]


def test_too_many_values_are_a_text_with_the_frequent_ones(tmp_path: Path) -> None:
    rows = [{"name": "often"}] * 3 + [{"name": f"name {i:03d}"} for i in range(100)]
    found = columns_of(store_of(tmp_path, rows))[1]
    assert found.kind == "text"
    assert len(found.values) == 60
    assert "often" in found.values


def test_a_sample_never_claims_to_know_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MAX_ROWS_READ", 5)
    found = columns_of(store_of(tmp_path, [{"room": "attic"}] * 9 + [{"room": "cellar"}]))[1]
    assert found.kind == "text"


def test_an_empty_store_has_only_paths(tmp_path: Path) -> None:
    assert columns_of(store_of(tmp_path, [])) == [Column("path", "text")]

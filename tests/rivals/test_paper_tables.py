"""Tables of runs: rows that differ in what they decide, made once, with their interval."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.seen_collection import batch_of, seen_collection
from insclr.errors import UserError
from insclr.methods import create_method
from insclr.methods.calibrated import CalibratedSettings
from insclr.methods.insclr import InsclrSettings
from insclr.methods.method import Batch
from insclr.recipe import load_recipe
from insclr_rivals import paper_tables
from insclr_rivals.paper_tables import Table
from insclr_rivals.runs import Entry, interval

_TINY = """
name = "tiny"
workers = 0

[network]
dim = 16
bias = true
initial_fc = "pca"

[[rounds]]
train = "fc"
steps = 3
tuples = 6
augmented_size = 48
plain_size = 48
cached_views = 1
method = { name = "insclr", neighbours = 2, pool = 10 }
"""


# Loose and tight instances, pairs, and instances seen from a path around them.
_COLLECTIONS: tuple[dict[str, Any], ...] = (
    {"spread": 0.9, "instances": 50, "images": 6},
    {"spread": 0.15, "instances": 20, "images": 12},
    {"spread": 0.1, "instances": 45, "images": 2},
    {"spread": 0.35, "instances": 30, "images": 12, "chained": True},
)


def _decided(settings: InsclrSettings | CalibratedSettings, folder: Path) -> str:
    """Everything that a method decides in one step on small collections: who attracts, who repels."""
    digest = hashlib.sha256()
    for collection in _COLLECTIONS:
        start = seen_collection(folder, tuples=90, **collection)
        method = create_method(settings)
        method.prepare(start)
        batch = batch_of(method, start)
        # Scales that differ from the plain view, as they would.
        noise = torch.randn(batch.augmented.shape, generator=torch.Generator().manual_seed(0))
        other = torch.nn.functional.normalize(batch.augmented.detach() + 0.1 * noise, dim=2)
        batch = Batch(batch.ids, batch.views, batch.plain, tuple(other for _ in method.needs.scales))
        pairs = method.label(batch, 0, torch.Generator().manual_seed(0))
        parts = [batch.ids, pairs.query, pairs.positive, pairs.negative, pairs.mined]
        parts += [part for one in pairs.bank for part in (one.positive, one.negative)]
        for part in parts:
            digest.update(b"nothing" if part is None else part.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", ["METHODS", "PRINTED", "MEMORY", "BATCH", "NEIGHBOURS", "POOL"])
def test_every_row_of_a_table_decides_differently_from_every_other(name: str, tmp_path: Path) -> None:
    table: Table = getattr(paper_tables, name)
    decided: dict[str, str] = {}
    for entry in table.entries:
        method = load_recipe(table.recipe, entry.changes).rounds[0].method
        # The pool of the table is larger than the small collection: told apart by its size alone.
        seen = f"{method.pool if name == 'POOL' else ''} {_decided(method, tmp_path / 'scratch')}"  # type: ignore[arg-type, attr-defined]
        assert seen not in decided, f"{entry.name} decides what {decided.get(seen)} decides"
        decided[seen] = entry.name


def test_a_table_of_runs_is_made_once_and_kept(small_collection: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(_TINY)
    labels = small_collection / "labels.csv"
    tiny = Table(str(recipe), (Entry("A", ("rounds.method.variant=A",)), Entry("B"), Entry("D")))
    table = tiny.run([labels], [0, 1], tmp_path / "out", rows=["A", "D"])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(one["entry"], one["seed"]) for one in results] == [("A", 0), ("D", 0), ("A", 1), ("D", 1)]
    assert len({one["recipe"] for one in results}) == 4
    assert table.count("±") == 2
    again = tiny.run([labels], [0, 1], tmp_path / "out", rows=["A", "D"])
    assert again == table  # nothing was run again: the seconds are the same
    with pytest.raises(UserError, match="folders of the same name"):
        tiny.run([labels, labels], [0], tmp_path / "out")
    with pytest.raises(UserError, match="no row 'C': choose from A, B, D"):
        tiny.run([labels], [0], tmp_path / "out", rows=["C"])
    with pytest.raises(UserError, match="unknown key"):
        Table(str(recipe), (Entry("x", ("rounds.nonsense=1",)),)).run([labels], [0], tmp_path / "out")


def test_the_interval_by_hand() -> None:
    # Three values 60, 62, 64: standard deviation 2, t = 4.30, 4.30 * 2 / sqrt(3) = 4.97.
    assert interval([60.0, 62.0, 64.0]) == " ± 5.0"
    # Eleven values -5 ... 5 around 60: standard deviation sqrt(11), t = 2.228, so the half width is t itself.
    assert interval([60.0 + n for n in range(-5, 6)]) == " ± 2.2"
    assert interval([60.0]) == ""

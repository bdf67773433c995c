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
from insclr.options import PaperOptions
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


_SWEEPS = ("TABLE1", "TABLE2", "FIGURE_BATCH", "NEIGHBOURS", "POOL")


@pytest.mark.parametrize("name", _SWEEPS)
def test_every_row_of_a_table_decides_differently_from_every_other(name: str, tmp_path: Path) -> None:
    table: Table = getattr(paper_tables, name)
    decided: dict[str, str] = {}
    for entry in table.rows("auto"):
        if entry.network != "trained" or entry.recipe:
            continue
        method = load_recipe("paper-small", entry.changes).rounds[0].method
        # The pool of the table is larger than the small collection: told apart by its size alone.
        seen = f"{method.pool if name == 'POOL' else ''} {_decided(method, tmp_path / 'scratch')}"  # type: ignore[arg-type, attr-defined]
        assert seen not in decided, f"{entry.name} decides what {decided.get(seen)} decides"
        decided[seen] = entry.name


def _row(table: Table, name: str) -> InsclrSettings:
    """The settings of a row on the benchmarks, where the paper's recipe is changed."""
    entry = next(one for one in table.rows("0.6") if one.name == name)
    method = load_recipe(table.recipe, entry.changes).rounds[-1].method
    assert isinstance(method, InsclrSettings)
    return method


def test_the_rows_are_the_papers_settings() -> None:
    assert [one.name for one in paper_tables.TABLE1.rows("0.6")][3:] == ["A", "B", "C", "D-anchor", "D"]
    best = _row(paper_tables.TABLE1, "D")
    # The row avg topk 4x of table 2 is the D of table 1: no sparsity, T_b 0.65, five rows at a time, four times.
    assert best == _row(paper_tables.TABLE2, "avg topk 4x")
    assert (best.sparsity, best.batch_threshold, best.k, best.repeats) == ("off", 0.65, 5, 4)
    assert _row(paper_tables.TABLE2, "max topk w/ spa.").sparsity == 0.6
    by_threshold = _row(paper_tables.TABLE2, "avg threshold")
    assert (by_threshold.choose, by_threshold.memory_threshold, by_threshold.repeats) == ("threshold", 0.6, 2)
    for n in (1, 3, 5, 7):
        assert _row(paper_tables.NEIGHBOURS, f"N_b {n}").neighbours == n
    assert _row(paper_tables.POOL, "P 250").pool == 250
    assert _row(paper_tables.TABLE6, "InsCLR w/o P.M. (nn=1)").selection == "nn"
    assert {one.line for one in paper_tables.FIGURE_BATCH.rows("0.6")} == {
        "nn", "augmented", "plain", "relative", "multiscale"
    }  # fmt: skip


def test_the_printed_numbers_are_those_of_the_papers_text() -> None:
    (best,) = [one for one in paper_tables.TABLE1.rows("0.6") if one.name == "D"]
    assert dict(best.printed) == {
        "roxford5k medium": 73.1, "rparis6k medium": 77.6, "roxford5k hard": 48.3, "rparis6k hard": 59.5
    }  # fmt: skip
    simclr = next(one for one in paper_tables.TABLE3.rows("0.6") if one.name == "SimCLR")
    assert (simclr.printed["rparis6k medium"], simclr.printed["rparis6k+R1M hard"]) == (50.5, 1.1)
    ours = paper_tables.TABLE5.rows("0.6")[-1]
    assert dict(ours.printed) == {"gldv2 public": 13.39, "gldv2 private": 13.71}


def _tiny(recipe: Path, **changes: str) -> Table:
    rows = tuple(Entry(name, (f"rounds.method.variant={name}",)) for name in ("A", "B", "D"))
    return Table("tiny", "A tiny table", lambda _: rows, recipe=str(recipe), **changes)  # type: ignore[arg-type]


def test_a_table_on_own_sets_is_made_once_and_kept(small_collection: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(_TINY)
    data = (str(small_collection / "labels.csv"),)
    tiny, options = _tiny(recipe), PaperOptions(data=data, recipe=str(recipe), seeds=2, rows="A,D")
    table = tiny.run(None, tmp_path / "out", options)
    results = json.loads((tmp_path / "out" / "tiny.json").read_text())
    outcomes = [(row["name"], one["seed"]) for row in results["rows"] for one in row["outcomes"]]
    assert outcomes == [("A", 0), ("A", 1), ("D", 0), ("D", 1)]
    assert len({one["recipe"] for row in results["rows"] for one in row["outcomes"]}) == 4
    assert table.count("±") == 2
    assert (
        tiny.run(None, tmp_path / "out", options) == table
    )  # nothing was run again: the minutes are the same
    with pytest.raises(UserError, match="folders of the same name"):
        tiny.run(None, tmp_path / "out", PaperOptions(data=data * 2))
    with pytest.raises(UserError, match="no row 'C': choose from A, B, D"):
        tiny.run(None, tmp_path / "out", PaperOptions(data=data, rows="C"))
    with pytest.raises(UserError, match="unknown key"):
        tiny.run(None, tmp_path / "out", PaperOptions(data=data, changes=("rounds.nonsense=1",)))


def test_a_run_too_short_for_its_log_has_no_mining_figure(small_collection: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    data = (str(small_collection / "labels.csv"),)
    options = PaperOptions(data=data, recipe=str(recipe))
    recipe.write_text(_TINY.replace("steps = 3", "steps = 9"))
    with pytest.raises(UserError, match="at least 10 steps"):
        paper_tables.FIGURE_MINING.run(None, tmp_path / "out", options)
    assert not (tmp_path / "out" / "figure-mining.md").exists()
    recipe.write_text(_TINY.replace("steps = 3", "steps = 10"))
    assert "| mini-batch |" in paper_tables.FIGURE_MINING.run(None, tmp_path / "out", options)


@pytest.mark.parametrize(
    ("images", "options", "complaint"),
    [
        (None, {}, "Give either IMAGES"),
        ("photos", {"data": ("labels.csv",)}, "Give either IMAGES"),
        ("photos", {"benchmarks": ("roxford5k",)}, "is not NAME=DIR"),
        ("photos", {"benchmarks": ("roxford5k=nowhere",)}, "is not NAME=DIR"),
        ("photos", {"benchmarks": ("roxford5k=.",), "layers": "late"}, "leave --layers out"),
    ],
)
def test_what_a_table_cannot_be_made_of_is_refused(
    tmp_path: Path, images: str | None, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        paper_tables.TABLE1.run(images and Path(images), tmp_path, PaperOptions(**options))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"seeds": 0}, "--seeds"),
        ({"sample": 5}, "beside --data"),
        ({"data": ("labels.csv",), "sample": -1}, "--sample"),
        ({"data": ("labels.csv",), "distractors": "far"}, "--distractors"),
        ({"data": ("labels.csv",), "size": 512}, "--size"),
        ({"data": ("labels.csv",), "labels": "other.csv"}, "leave --labels"),
    ],
)
def test_options_that_nothing_would_read_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        PaperOptions(**options)


def test_the_interval_by_hand() -> None:
    # Three values 60, 62, 64: standard deviation 2, t = 4.30, 4.30 * 2 / sqrt(3) = 4.97.
    assert interval([60.0, 62.0, 64.0]) == " ± 5.0"
    # Eleven values -5 ... 5 around 60: standard deviation sqrt(11), t = 2.228, so the half width is t itself.
    assert interval([60.0 + n for n in range(-5, 6)]) == " ± 2.2"
    assert interval([60.0]) == ""

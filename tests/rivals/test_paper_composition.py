"""What each table of the paper is made of, and how it is written: without training anything."""

import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from insclr.recipe import load_recipe
from insclr_rivals.paper_figures import draw_lines
from insclr_rivals.paper_page import write_table
from insclr_rivals.paper_tables import FIGURE_BATCH, TABLE3, Table
from insclr_rivals.runs import Entry, Outcome

_TABLES = {
    point.name: point.load() for point in entry_points(group="insclr.tables") if point.name != "rivals"
}
# Rows that are trained, and numbers that the paper prints, counted in its LaTeX source.
_TRAINED = {
    "table1": 6, "table2": 8, "table3": 7, "table4": 1, "table5": 1, "table6": 2, "figure-batch": 21,
    "neighbours": 4, "pool": 5, "figure-mining": 1, "figure-retrieval": 2,
}  # fmt: skip
_PRINTED = {"table1": 32, "table2": 32, "table3": 56, "table4": 8, "table5": 6, "table6": 5}


@pytest.mark.parametrize("name", _TABLES)
def test_the_rows_of_a_table(name: str) -> None:
    table: Table = _TABLES[name]
    assert table.name == name
    rows = table.rows("0.6")
    assert len({row.name for row in rows}) == len(rows)
    trained = [row for row in rows if row.network == "trained"]
    assert len(trained) == _TRAINED[name]
    recipes = [load_recipe(row.recipe or table.recipe, row.changes) for row in trained]
    assert len({recipe.fingerprint() for recipe in recipes}) == len(trained)
    assert all(each.train == "all" for recipe in recipes for each in recipe.rounds)
    if name in _PRINTED:
        assert sum(len(row.printed) for row in rows) == _PRINTED[name]
    small = [load_recipe("paper-small", row.changes) for row in table.rows("auto") if not row.recipe]
    assert all(recipe.rounds[0].train == "fc" for recipe in small)


def test_every_table_of_the_paper_is_there() -> None:
    assert set(_TABLES) == set(_TRAINED)


def _outcome(row: Entry, seed: int, **measured: float) -> Outcome:
    return Outcome(
        row.name, "photos", seed, "abc", 0.0, 0.0, 0.9, 99.0, training_seconds=90.0, measured=measured,
        described={"roxford5k": "1024 px, thumbnail, scales 1.41, 1, 0.707"},
    )  # fmt: skip


def test_printed_numbers_stand_beside_ours(tmp_path: Path) -> None:
    rows = {row.name: row for row in TABLE3.rows("0.6")}
    seeds = [60.0, 62.0, 64.0]  # 62.0 +- 5.0 by Student's t
    done = [
        (
            rows["SimCLR"],
            [_outcome(rows["SimCLR"], s, **{"roxford5k medium": v}) for s, v in enumerate(seeds)],
        ),
        (rows["InsCLR"], [_outcome(rows["InsCLR"], 0, **{"roxford5k medium": 70.0, "roxford5k easy": 80.0})]),
        (Entry("<i>other</i>", network="printed", printed={"roxford5k medium": 13.39}), []),
    ]
    text = write_table(tmp_path / "t", "A table", done, ["A note."])
    lines = text.splitlines()
    assert "|  | roxford5k medium | roxford5k easy | precision | minutes | recipe |" in lines
    assert "| SimCLR | 62.0 ± 5.0 (22.2) |  | 0.90 | 1.5 | abc |" in lines
    assert "| InsCLR | 70.0 (73.1) | 80.0 | 0.90 | 1.5 | abc |" in lines
    assert "| <i>other</i> | (13.39) |  |  |  |  |" in lines
    assert "roxford5k: images described at 1024 px, thumbnail, scales 1.41, 1, 0.707." in lines
    assert (tmp_path / "t.md").read_text() == text
    page = (tmp_path / "t.html").read_text()
    assert "62.0 ± 5.0 (22.2)" in page
    assert "&lt;i&gt;other" in page
    content = json.loads((tmp_path / "t.json").read_text())
    assert [one["measured"]["roxford5k medium"] for one in content["rows"][0]["outcomes"]] == seeds


def test_the_figure_has_a_line_for_each_strategy_and_a_level_one_for_nn() -> None:
    done = [
        (row, [_outcome(row, 0, **{"roxford5k medium": 50.0 + 10 * (row.x or 0.0)})])
        for row in FIGURE_BATCH.rows("0.6")
    ]
    (figure,) = draw_lines(done, [], Path())
    assert figure.values["nn"] == [(0.5, 50.0), (0.8, 50.0)]
    assert figure.values["plain"] == [(x, pytest.approx(50 + 10 * x)) for x in (0.5, 0.6, 0.65, 0.7, 0.8)]
    assert figure.chart.count("<polyline") >= 5

import json
from pathlib import Path

import pytest

from insclr.ablate import LISTS, Entry, LabelledSet, ablate, interval
from insclr.errors import UserError
from insclr.recipe import load_recipe

_TINY = """
name = "tiny"
workers = 0

[network]
dim = 16
start = "pca"

[[rounds]]
train = "fc"
steps = 3
tuples = 6
neighbours = 2
pool = 10
augmented_size = 48
plain_size = 48
cached_views = 1
"""


@pytest.mark.parametrize("name", LISTS)
def test_the_papers_tables_fit_their_recipes(name: str) -> None:
    for recipe in ("paper-gldv2", "fast") if name in ("methods", "neighbours", "pool") else ("paper-gldv2",):
        hashes = {load_recipe(recipe, entry.changes).fingerprint() for entry in LISTS[name]}
        assert len(hashes) == len(LISTS[name])  # no two entries are the same run


def test_a_table_of_runs_is_made_once_and_kept(small_collection: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(_TINY)
    place = LabelledSet("things", small_collection, small_collection / "labels.csv")
    entries = (Entry("A", ("rounds.method=A",)), Entry("D"))
    table = ablate(entries, [place], [0, 1], tmp_path / "out", recipe=str(recipe))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(one["entry"], one["seed"]) for one in results] == [("A", 0), ("D", 0), ("A", 1), ("D", 1)]
    assert len({one["recipe"] for one in results}) == 4
    assert table.count("±") == 2
    again = ablate(entries, [place], [0, 1], tmp_path / "out", recipe=str(recipe))
    assert again == table  # nothing was run again: the seconds are the same
    with pytest.raises(UserError, match="unknown key"):
        ablate((Entry("x", ("rounds.nonsense=1",)),), [place], [0], tmp_path / "out", recipe=str(recipe))


def test_the_interval_by_hand() -> None:
    # Three values 60, 62, 64: standard deviation 2, t = 4.30, 4.30 * 2 / sqrt(3) = 4.97.
    assert interval([60.0, 62.0, 64.0]) == " ± 5.0"
    # Eleven values -5 ... 5 around 60: standard deviation sqrt(11), t = 2.228, so the half width is t itself.
    assert interval([60.0 + n for n in range(-5, 6)]) == " ± 2.2"
    assert interval([60.0]) == ""

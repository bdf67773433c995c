"""The comparison with the rivals: the grid of each, shares of the gap, the page."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from insclr.data.images import list_images
from insclr.data.labels import read_labels
from insclr.errors import UserError
from insclr.jobs.train import train
from insclr.options import PaperOptions, TrainOptions
from insclr.recipe import load_recipe
from insclr.run_folder import RunReader
from insclr_rivals import comparison
from insclr_rivals.comparison import CONTENDERS, LEARNING_RATES, Contender
from insclr_rivals.runs import Entry, LabelledSet, Outcome, find_sets, run_all

_LABELS = ("mugs/labels.csv", "shoes/labels.csv")
# mAP of each row, at its best learning rate; every other rate is worse.
_MAPS = {
    "pretrained": 40.0,
    "PCA": 45.0,
    "D (fast)": 60.0,
    "oracle": 80.0,
    "simclr": 30.0,
    "byol": 65.0,
    "cluster-contrast": 55.0,
    "default": 70.0,
    "default without its guard": 69.0,
}
_BEST_RATE = {"simclr": "0.0003", "byol": "0.003", "oracle": "0.001"}
_BEST_START = {"byol": "views"}  # the others begin best at the PCA


def _run(out: Path, data: tuple[str, ...] = _LABELS, **options: Any) -> str:
    return comparison.run(None, out, PaperOptions(data=data, **options))


class _Runs:
    """Stands in for the runs: remembers what was asked for and makes the numbers up."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.entries: list[Entry] = []
        self.failing: dict[str, UserError] = {}

    def __call__(
        self, jobs: Sequence[tuple[Entry, LabelledSet, int]], out: Path
    ) -> list[Outcome | UserError]:
        assert out.name == "out"
        return [self.failing.get(job[0].name) or self._outcome(*job) for job in jobs]

    def _outcome(self, entry: Entry, place: LabelledSet, seed: int) -> Outcome:
        load_recipe(entry.recipe, entry.changes)
        self.asked.append((entry.name, place.name, seed))
        self.entries.append(entry)
        name, _, rate = entry.name.partition(" lr ")
        name, _, start = name.partition(" from ")
        value = _MAPS[name] + seed
        if rate and rate.split()[0] not in (_BEST_RATE.get(name), "0.0001", "3e-05"):
            value -= 10
        if (start or "pca") != _BEST_START.get(name, "pca"):
            value -= 5
        return Outcome(
            name, place.name, seed, "", value, value, None, 99.0,
            run="runs/mugs/x", recall=70.0, training_seconds=60.0, steps=100, images=25_600
        )  # fmt: skip


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> _Runs:
    made = _Runs()
    monkeypatch.setattr(comparison, "run_all", made)
    monkeypatch.setattr(comparison, "try_all", made)
    return made


def test_each_rival_has_its_best_rate_and_its_share_of_the_gap(runs: _Runs, tmp_path: Path) -> None:
    table = _run(tmp_path / "out", seeds=3, rows="simclr,byol")
    found = json.loads((tmp_path / "out" / "rivals.json").read_text())
    rows = {row["name"]: row for row in found["rows"] if row["collection"] == "mugs"}
    assert list(rows) == ["pretrained", "D (fast)", "simclr", "byol", "oracle"]
    assert rows["simclr"]["rate"] == "0.0003, pca"
    assert rows["simclr"]["grid"] == {
        "0.001, pca": 20.0,
        "0.001, views": 15.0,
        "0.0003, pca": 30.0,
        "0.003, pca": 20.0,
    }
    assert rows["byol"]["rate"] == "0.003, views"
    assert rows["oracle"]["grid"] == {"0.0003": 70.0, "0.001": 80.0, "0.003": 70.0}
    assert rows["simclr"]["maps"] == [30.0, 31.0, 32.0]
    # (31 - 40) / (81 - 40), and so on, with the means over the three seeds.
    assert rows["simclr"]["share"] == pytest.approx(-9 / 41)
    assert rows["D (fast)"]["share"] == pytest.approx(21 / 41)
    assert rows["oracle"]["share"] == 1.0
    assert (rows["pretrained"]["images"], rows["pretrained"]["maps"]) == (
        0,
        [40.0],
    )  # nothing depends on the seed
    assert not rows["simclr"]["beats_ours"]
    assert rows["byol"]["beats_ours"]
    assert "| byol (above ours) | mugs | rival | 66.0 | 66.0 ± 2.5 |" in table
    assert table.count("| mugs |") == table.count("| shoes |") == len(rows)
    # The grid is run on the first seed only.
    tried = [name for name, place, seed in runs.asked if place == "mugs" and seed == 1 and "simclr" in name]
    assert tried == ["simclr lr 0.0003"]
    assert (
        len([1 for name, place, seed in runs.asked if (place, seed) == ("mugs", 0) and "byol" in name]) == 4
    )


def test_the_chart_has_a_line_a_method_and_a_dot_a_set(runs: _Runs, tmp_path: Path) -> None:
    assert runs.asked == []
    _run(tmp_path / "out", rows="simclr,byol")
    chart = (tmp_path / "out" / "rivals.svg").read_text()
    assert chart in (tmp_path / "out" / "rivals.html").read_text()
    dots = [
        float(x) for x in re.findall(r'<circle cx="([\d.]+)" cy="[\d.]+" r="5" fill="#4f46e5" fill-op', chart)
    ]
    # pretrained 0 %, fast 50 %, byol (65 - 40) / 40 = 62.5 %, the oracle 100 % of an axis from -20 to 140 %.
    shares = sorted((x - 150) / (760 - 150 - 20) * 160 - 20 for x in dots)
    assert shares == pytest.approx([-20, 0, 50, 62.5, 100], abs=0.1)  # simclr, -25 %, stands at the edge


def test_a_rate_that_fails_is_skipped_and_a_rival_that_always_fails_is_reported(
    runs: _Runs, tmp_path: Path
) -> None:
    runs.failing = {"simclr lr 0.0003": UserError("not a number")}
    names = ("byol", "byol from views")
    runs.failing |= {
        f"{name} lr {rate:g}": UserError("byol <fails>") for name in names for rate in LEARNING_RATES
    }
    table = _run(tmp_path / "out", _LABELS[:1], rows="simclr,byol")
    assert "\nWithout a result: byol <fails>\n" in table
    rows = {row["name"]: row for row in json.loads((tmp_path / "out" / "rivals.json").read_text())["rows"]}
    assert "byol" not in rows
    assert rows["simclr"]["grid"] == {"0.001, pca": 20.0, "0.001, views": 15.0, "0.003, pca": 20.0}
    assert "Without a result: byol &lt;fails&gt;" in (tmp_path / "out" / "rivals.html").read_text()
    runs.failing = {"pretrained": UserError("no images")}
    with pytest.raises(UserError, match="no images"):
        _run(tmp_path / "out", _LABELS[:1], rows="simclr")


def test_a_row_that_does_not_exist_and_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row 'simclr2'"):
        _run(tmp_path, rows="simclr2")
    with pytest.raises(UserError, match="same name"):
        _run(tmp_path, (_LABELS[0], _LABELS[0]))


@pytest.mark.parametrize("name", ["late", "all"])
def test_rivals_may_train_more_layers_for_as_long_as_default(runs: _Runs, name: str, tmp_path: Path) -> None:
    table = _run(tmp_path / "out", _LABELS[:1], rows="simclr,cluster-contrast", layers=name)
    assert f"trained {name} layers from our start, as long as default" in table
    assert (tmp_path / "out" / f"rivals-{name}.md").read_text() == table
    assert runs.asked[0][0] == "default without its guard"  # it took 60 s
    rate = "0.0001" if name == "late" else "3e-05"
    default = load_recipe("default")
    (ours,) = {(each.lr, each.fc_lr, each.warmup) for each in default.rounds if each.train == "late"}
    for rival in ("simclr", "cluster-contrast"):
        (entry,) = (one for one in runs.entries if one.name.startswith(rival))
        assert entry.name == f"{rival} from views lr {rate}"
        recipe = load_recipe(entry.recipe, entry.changes)
        (theirs,) = recipe.rounds
        assert (recipe.minutes, theirs.train, theirs.batch_norm) == (1.0, name, "frozen")
        assert (theirs.lr, theirs.fc_lr) == pytest.approx(
            (ours[0] if name == "late" else 0.3 * ours[0], ours[1])
        )
        views = {"simclr": 2, "cluster-contrast": 4}[rival]
        assert theirs.tuples * views == (256 if name == "late" else 64)


def test_a_protocol_measures_the_rivals_too(
    monkeypatch: pytest.MonkeyPatch, runs: _Runs, tmp_path: Path
) -> None:
    (tmp_path / "oxford").mkdir()
    real = runs._outcome

    def measured(entry: Entry, place: LabelledSet, seed: int) -> Outcome:
        (benchmark,) = place.benchmarks
        assert (benchmark.protocol, benchmark.root, place.measuring.size) == (
            "roxford5k",
            tmp_path / "oxford",
            320,
        )
        return replace(real(entry, place, seed), measured={"mugs": 1.0, "roxford5k easy": 20.0 + seed})

    monkeypatch.setattr(runs, "_outcome", measured)
    given = (f"roxford5k={tmp_path / 'oxford'}",)
    table = _run(tmp_path / "out", _LABELS[:1], rows="simclr", seeds=3, benchmarks=given, size=320)
    assert "| R@1 | roxford5k easy | share" in table
    assert "| simclr | mugs | rival | 31.0 | 31.0 ± 2.5 | 70.0 | 21.0 |" in table


def test_a_sample_of_a_set_is_the_same_every_time(small_collection: Path, tmp_path: Path) -> None:
    labels = small_collection / "labels.csv"
    options = PaperOptions(data=(str(labels),), sample=7)
    (place,) = find_sets(options, options, tmp_path / "out")
    assert place.name == f"{small_collection.name}-7"
    assert place.labels is not None
    sampled, whole = read_labels(place.labels), read_labels(labels)
    assert len(sampled) == len(list_images(place.images)) == 7
    of_file = {
        (whole.root / path).resolve(): name for path, name in zip(whole.paths, whole.instances, strict=True)
    }
    for path, name in zip(sampled.paths, sampled.instances, strict=True):
        assert of_file[(sampled.root / path).resolve()] == name
    first = place.labels.read_bytes()
    find_sets(options, options, tmp_path / "out")
    assert place.labels.read_bytes() == first
    everything = PaperOptions(data=(str(labels),), sample=len(whole))
    (place,) = find_sets(everything, everything, tmp_path / "out")
    assert (place.images, place.labels) == (small_collection, labels)


def test_every_row_is_a_recipe_that_loads() -> None:
    fingerprints = set()
    for one in CONTENDERS:
        for rate in one.rates(None):
            entry = one.entry(rate)
            fingerprints.add(load_recipe(entry.recipe, entry.changes).fingerprint())
    grids = sum(len(one.rates(None)) > 1 for one in CONTENDERS)
    assert len(fingerprints) == len(CONTENDERS) + 2 * grids  # no two rows are the same run


_TINY = """
name = "tiny"
workers = 0

[network]
dim = 16
bias = true
initial_fc = "pca"

[descriptor]
size = 32
fit = "square"
scales = [1.0]

[[rounds]]
train = "fc"
steps = 3
tuples = 6
augmented_size = 32
plain_size = 32
cached_views = 2
method = { name = "simclr" }
"""


def test_a_real_run_of_a_rival_gives_the_numbers_of_its_row(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr("time.process_time", lambda: 10.0 * next(ticks))
    (tmp_path / "tiny.toml").write_text(_TINY)
    options = PaperOptions(data=(str(small_collection / "labels.csv"),))
    (place,) = find_sets(options, options, tmp_path)
    entry = Contender("simclr", "rival", str(tmp_path / "tiny.toml")).entry(3e-3, start="views")
    (outcome,) = run_all([(entry, place, 1)], tmp_path / "out")
    assert outcome.entry == "simclr from views lr 0.003"
    assert (outcome.steps, outcome.images) == (3, 3 * 6 * 2)  # two views of six images in a step
    # On a CPU, the time of the processor counts: other programs do not make a method slower than its rivals.
    assert outcome.training_seconds > 0
    assert outcome.training_seconds % 10 == 0
    assert outcome.map != outcome.start  # the steps have changed the network
    ran = load_recipe(tmp_path / "out" / outcome.run / "recipe.toml")
    assert (ran.seed, ran.network.initial_fc) == (1, "views")
    assert (ran.rounds[0].lr, ran.rounds[0].method.name) == (3e-3, "simclr")
    assert ran.fingerprint() == outcome.recipe
    assert RunReader(tmp_path / "out" / outcome.run).option("local") == "off"


def test_a_rival_with_strong_views_begins_at_the_same_initial_fc(
    small_collection: Path, tmp_path: Path
) -> None:
    """The initial FC is ours: small crops and other colours would give it another one, which is worth less."""
    (tmp_path / "tiny.toml").write_text(_TINY.replace('"pca"', '"views"'))
    found = []
    for changes in ((), ("rounds.augmentation=simclr", "rounds.crop=[0.08, 0.2]")):
        run = tmp_path / str(len(changes))
        train(small_collection, run, tmp_path / "tiny.toml", TrainOptions(changes=changes))
        found.append(load_file(run / "start.safetensors"))
    mild, strong = found
    assert mild
    assert all(torch.equal(strong[name], value) for name, value in mild.items())

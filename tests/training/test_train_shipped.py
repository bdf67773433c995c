"""Small runs of the shipped recipes: every round, what is logged for the report, and the guard."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from helpers.small_training import SHIPPED, trained_weights
from insclr.data.images import Skipped, list_images
from insclr.data.labels import read_labels
from insclr.data.loader import Collection, ViewSpec
from insclr.data.tuples import FeedbackGroups
from insclr.describe.collection_features import CollectionFeatures
from insclr.errors import UserError
from insclr.mining.candidates import PairTrust
from insclr.model.backbones import Backbone
from insclr.model.model_file import load_model
from insclr.ranks import Ranks
from insclr.recipe import load_recipe
from insclr.run_folder import RunReader
from insclr.tracking import read_metrics
from insclr.training.run import train
from insclr_demo import draw_collection


def test_the_shipped_recipe_runs_all_its_rounds_and_learns(tmp_path: Path) -> None:
    run = tmp_path / "run"
    photos = draw_collection(tmp_path / "photos", things=16, views=6, size=96, workers=1)
    sizes = ("descriptor.size=96", "rounds.plain_size=96", "rounds.augmented_size=96")
    changes = (*SHIPPED, *sizes, "rounds.steps=30")
    train(photos, run, "default", changes=changes, labels=photos / "labels.csv")
    records = read_metrics(run)
    rounds = len(load_recipe("default").rounds)
    assert [r["round"] for r in records if r.get("event") == "end"] == list(range(1, rounds + 1))
    assert [r["action"] for r in records if r.get("event") == "guard"] == ["ok"] * rounds
    maps = [r["map"] for r in records if r.get("map") is not None]
    assert len(maps) == rounds + 1
    assert maps[-1] > maps[0] + 4  # from 60 to 67
    assert not list(run.rglob("*.bank"))  # it owns no memory bank, in no checkpoint


def test_the_initial_fc_is_renewed_after_late_layers_learned(small_collection: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_collection, run, "default", changes=SHIPPED)
    starts = {r["round"]: r["reasons"] for r in read_metrics(run) if r.get("event") == "start"}
    renewed = [n for n, reasons in starts.items() if any(one.startswith("whitening") for one in reasons)]
    layers = [one.train for one in load_recipe("default").rounds]
    assert layers[:3] == ["fc", "late", "fc"]
    # A late round goes on with the last layer that the round before it trained.
    assert renewed == [1] + [number + 2 for number, layer in enumerate(layers) if layer == "late"]
    start = safetensors.torch.load_file(run / "start.safetensors")
    end = safetensors.torch.load_file(run / f"round-{len(layers)}" / "end.safetensors")
    mixed = end["fc.weight"].lerp(start["weight"], 0.6)
    torch.testing.assert_close(trained_weights(run)["fc.weight"], mixed)


def test_where_late_layers_learn_last_the_initial_fc_of_their_features_is_final(
    small_collection: Path, tmp_path: Path
) -> None:
    recipe, run = tmp_path / "late.toml", tmp_path / "run"
    recipe.write_text(
        'extends = "fast"\n[network]\ninitial_fc_weight = 0.0\nrenew_initial_fc = true\n'
        + 2 * '[[rounds]]\ntrain = "late"\nbatch_norm = "frozen"\nmethod = { name = "calibrated" }\n'
    )
    train(small_collection, run, recipe, changes=SHIPPED)
    shipped, start = trained_weights(run), safetensors.torch.load_file(run / "start.safetensors")
    assert torch.equal(shipped["fc.weight"], start["weight"])
    ends = [safetensors.torch.load_file(run / f"round-{n}" / "end.safetensors") for n in (1, 2)]
    # The layer that was trained in the last round is not it, and the round trained the layers below.
    assert not torch.equal(ends[1]["fc.weight"], start["weight"])
    assert any(not torch.equal(ends[0][key], ends[1][key]) for key in ends[0] if key.startswith("backbone"))
    assert [r["round"] for r in read_metrics(run) if r.get("event") == "renewed"] == [2]


def test_the_inspection_follows_the_network(small_collection: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small_collection, run, "fast", changes=(*SHIPPED[:-1], "rounds.lr=1e-2", "rounds.precision=fp32"))
    reader = RunReader(run)
    looks = [reader.inspection(1, "start"), reader.inspection(1, "end"), reader.inspection(2, "end")]
    counts = [look["histograms"]["counts"] for look in looks if look is not None]
    assert len(counts) == 3
    assert counts[0] != counts[1]
    assert counts[1] != counts[2]
    # The last one shows the network that ships: its own neighbours, by its own descriptors.
    model = load_model(run / "model.safetensors")
    collection = Collection(list_images(small_collection), 0, Skipped())
    features = CollectionFeatures(model.recipe.network, collection, run / "cache", Ranks())
    pooled = features.read(model.network, ViewSpec(plain_size=64, augmented_size=64, augmented=2))
    descriptors = model.network.describe_pooled(pooled.plain)
    last = looks[2]
    assert last is not None
    paths = list_images(small_collection).paths
    for one in last["tuples"]:
        anchor = descriptors[paths.index(one["anchor"])]
        for member in one["members"]:
            expected = float(anchor @ descriptors[paths.index(member["path"])])
            assert member["similarity"] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("positives", "consistency"), [(1000.0, 0.0), (0.0, 1.1)], ids=["too few", "inconsistent"]
)
def test_the_guard_leaves_out_a_round_without_safe_pairs(
    positives: float,
    consistency: float,
    small_collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Too few of them, or inconsistent ones."""
    monkeypatch.setattr("insclr.training.guard.MIN_POSITIVES", positives)
    monkeypatch.setattr("insclr.mining.candidates.LEAST_CONSISTENCY", consistency)
    run = tmp_path / "run"
    train(small_collection, run, "fast", changes=(*SHIPPED[:-1], "rounds.cached_views=4"))
    records = read_metrics(run)
    assert [r["action"] for r in records if r.get("event") == "guard"] == ["skip", "skip"]
    start = safetensors.torch.load_file(run / "start.safetensors")
    assert torch.allclose(trained_weights(run)["fc.weight"], start["weight"], atol=1e-6)
    # Untrusted pairs are no part of the initial FC either; pairs that are merely few are.
    assert RunReader(run).pair_trust() is (PairTrust.UNTRUSTED if consistency else PairTrust.UNTESTED)
    reasons = json.loads((run / "start.json").read_text())["reasons"]
    assert ("whitening = 0.0 mined pairs an image beside its own views" in reasons) == (consistency > 0)


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [("default", SHIPPED), ("fast", (*SHIPPED[:-1], "network.initial_fc=pca"))],
    ids=["default", "another start"],
)
def test_feedback_alone_is_learned_where_mined_pairs_are_untrusted(
    recipe: str,
    changes: tuple[str, ...],
    small_collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In every round, also after the first has changed the network, and in every initial FC."""
    monkeypatch.setattr("insclr.mining.candidates.LEAST_CONSISTENCY", 1.1)
    labels = read_labels(small_collection / "labels.csv")
    names = sorted(set(labels.instances))
    groups = torch.tensor([names.index(one) for one in labels.instances])
    feedback = FeedbackGroups(
        groups, torch.ones(len(groups), dtype=torch.bool), torch.zeros(0, 2, dtype=torch.int64)
    )
    run = tmp_path / "run"
    train(labels.images, run, recipe, changes=(*changes, "rounds.cached_views=4"), feedback=feedback)
    records = read_metrics(run)
    starts = [r for r in records if r.get("event") == "start"]
    assert len(starts) == len(load_recipe(recipe).rounds)
    assert all(any("mined pairs were left out" in one for one in start["reasons"]) for start in starts)
    from_feedback = feedback.positives() / len(groups)
    assert [start["pairs"] for start in starts] == [pytest.approx(from_feedback)] * len(starts)
    assert RunReader(run).pair_trust() is PairTrust.UNTRUSTED
    assert {r["action"] for r in records if r.get("event") == "guard"} == {"ok"}


@pytest.mark.parametrize("train_layers", ["fc", "late"])
def test_the_guard_undoes_a_round_that_collapses(
    train_layers: str, small_collection: Path, tmp_path: Path
) -> None:
    """Without active negatives everything is pulled together: the network ends as it began."""
    run = tmp_path / "run"
    recipe, ruin, rate = ("fast", 0, "lr=0.05") if train_layers == "fc" else ("default", 1, "fc_lr=0.05")
    ruinous = (
        f'rounds.{ruin}.loss.form="contrastive"',
        f"rounds.{ruin}.loss.margin=1.0",
        f"rounds.{ruin}.{rate}",
        f"rounds.{ruin}.steps=60",
    )
    changes = SHIPPED[:-1] if recipe == "fast" else SHIPPED  # which has no minutes
    train(small_collection, run, recipe, changes=(*changes, "network.initial_fc_weight=0", *ruinous))
    actions = [r["action"] for r in read_metrics(run) if r.get("event") == "guard"]
    assert actions[ruin] == "step back"
    ends = [
        safetensors.torch.load_file(run / f"round-{n}" / "end.safetensors") for n in (ruin, ruin + 1) if n
    ]
    if ruin:
        assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
        # Nor is the start made anew of it: what the last layer has learned so far stays.
        after = next(r for r in read_metrics(run) if r.get("event") == "start" and r["round"] == ruin + 2)
        assert not any(one.startswith("whitening") for one in after["reasons"])
    else:
        start = safetensors.torch.load_file(run / "start.safetensors")
        assert torch.equal(ends[0]["fc.weight"], start["weight"])


def test_a_backbone_without_late_layers_is_refused_before_photos_are_described(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backbone, "has_late", property(lambda _: False))
    with pytest.raises(UserError, match="choose the recipe fast"):
        train(small_collection, tmp_path / "run", "default", changes=SHIPPED)
    assert not (tmp_path / "run" / "cache").exists()

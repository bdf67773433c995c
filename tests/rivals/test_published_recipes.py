"""What is published of the rivals and of the paper's training is what the recipes have."""

from pathlib import Path

import pytest

from insclr.jobs.train import train
from insclr.options import TrainOptions
from insclr.recipe import load_recipe
from insclr.tracking import read_metrics
from insclr.training import run_log
from insclr_rivals.colours import PUBLISHED, Photometry

# Crops as shares of the area, and what is done to colours; "paper" is nothing.
_VIEWS = {
    "simclr": ((0.08, 1.0), "simclr"),
    "moco-v2": ((0.2, 1.0), "moco-v2"),
    "byol": ((0.08, 1.0), "byol"),
    "swav": ((0.14, 1.0), "swav"),
    "pcl": ((0.2, 1.0), "moco-v2"),
    "deepcluster": ((0.08, 1.0), "paper"),
}


@pytest.mark.parametrize("name", _VIEWS)
def test_views_are_the_published_ones(name: str) -> None:
    for recipe in (load_recipe(name), load_recipe(f"gldv2-{name}")):
        colours = "deepcluster" if recipe.name == "gldv2-deepcluster" else _VIEWS[name][1]
        assert {(each.crop, each.augmentation) for each in recipe.rounds} == {(_VIEWS[name][0], colours)}


def test_the_colours_of_deepcluster_are_those_of_open_self_sup() -> None:
    """ColorJitter(0.4, 0.4, 1.0, 0.5) always, grey with 0.2, no blur."""
    assert PUBLISHED["deepcluster"] == (Photometry(0.4, 0.4, 1.0, 0.5, blur=0.0, jitter=1.0, grey=0.2),)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("manifold-mining", {"nearest": 50}),
        ("cluster-contrast", {"k1": 30, "k2": 6, "min_images": 4, "temperature": 0.05, "momentum": 0.1}),
        ("scan-nn", {"nearest": 20}),
        ("gldv2-moco-v2", {"queue": 65536, "temperature": 0.2, "momentum": 0.999}),
        ("gldv2-pcl", {"queue": 16384, "momentum": 0.999}),
        ("gldv2-swav", {"queue": 3840, "temperature": 0.1, "epsilon": 0.05}),
        ("gldv2-byol", {"momentum": 0.996, "hidden": 4096, "projected": 256}),
    ],
)
def test_settings_are_the_published_ones(name: str, published: dict[str, float]) -> None:
    for each in load_recipe(name).rounds:
        assert {key: getattr(each.method, key) for key in published} == published


@pytest.mark.parametrize(
    ("name", "rate", "optimizer"),
    [
        ("simclr", 0.3, "lars"),
        ("moco-v2", 0.03, "sgd"),
        ("byol", 0.2, "lars"),
        ("pcl", 0.03, "sgd"),
        ("swav", 0.03, "lars"),
        ("deepcluster", 0.15, "sgd"),
    ],
)
def test_rivals_on_landmarks_train_as_the_paper_prints(name: str, rate: float, optimizer: str) -> None:
    """All layers, 20 epochs, 224 and then 448 px, at the printed rates."""
    rounds = load_recipe(f"gldv2-{name}").rounds
    assert [each.augmented_size for each in rounds] == [224, 448]
    assert sum(each.epochs for each in rounds) == 20
    assert {(each.train, each.lr, each.optimizer) for each in rounds} == {("all", rate, optimizer)}


def test_a_million_images_fit_on_the_disk() -> None:
    """Banks in half precision, one checkpoint at a time, and few of them: they have copies of the banks."""
    for name in ("paper-gldv2", "released-gldv2", "gldv2-arcface", "gldv2-moco-v2", "gldv2-simclr"):
        recipe = load_recipe(name)
        assert (recipe.checkpoint_every, recipe.keep_checkpoints) == (5_000, 1)
    recipe = load_recipe("paper-gldv2")
    assert {getattr(each.method, "bank_dtype", "") for each in recipe.rounds} == {"fp16"}


def test_a_large_labelled_collection_is_measured_with_some_queries(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("rounds.steps=2", "rounds.epochs=0.0", "rounds.tuples=4", "workers=0", "guard=false")
    options = TrainOptions(labels=small_collection / "labels.csv", changes=changes)
    monkeypatch.setattr(run_log, "LARGE", 10)
    monkeypatch.setattr(run_log, "SAMPLED_QUERIES", 7)
    train(small_collection, tmp_path / "run", "fast", options)
    measured = [record for record in read_metrics(tmp_path / "run") if record.get("map") is not None]
    assert len(measured) >= 2
    assert {record["map_queries"] for record in measured} == {7}
    assert "of 7 queries drawn at random" in (tmp_path / "run" / "report.html").read_text()

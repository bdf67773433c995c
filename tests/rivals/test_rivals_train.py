"""Every rival goes through the engine: on cached features, on late layers, on images; killed, resumed, on ranks."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from helpers.small_run import OF_METHOD, small
from insclr.errors import UserError
from insclr.methods import create_method
from insclr.model.model_file import load_model
from insclr.recipe import load_recipe, method_names
from insclr.report.run_report import write_report
from insclr.tracking import read_metrics
from insclr.training.run import train


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features that all runs on the drawn collection share."""
    return tmp_path_factory.mktemp("features")


def _weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model.safetensors")


@pytest.mark.parametrize("name", OF_METHOD)
def test_every_rival_trains_by_its_recipe(
    name: str, small_collection: Path, cache: Path, tmp_path: Path
) -> None:
    run, labels = tmp_path / "run", small_collection / "labels.csv"
    train(small_collection, run, name, changes=small(name, "rounds.steps=3"), labels=labels, cache=cache)
    records = read_metrics(run)
    finish = records[-1]
    assert 0 < finish["map"] <= 100
    assert 0 < finish["recall_at_1"] <= 100
    assert all(torch.isfinite(value).all() for value in _weights(run).values() if value.is_floating_point())
    method = load_recipe(name).rounds[0].method
    needs = create_method(method).needs
    seen = next(record for record in records if record.get("event") == "end")["images"]
    assert seen % (3 * 8 * needs.augmented) == 0
    # What learned from labels says so, wherever it is asked.
    supervised = method.supervised
    assert any(record.get("labels_used") for record in records) == supervised
    assert ("labels" in load_model(run / "model.safetensors").notes) == supervised
    assert ("This run learned from the labels" in write_report(run).read_text()) == supervised


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("moco-v2", "late"),
        ("cluster-contrast", "late"),
        ("scan-nn", "late"),
        ("gem-ap", "late"),
        ("byol", "all"),
        ("pcl", "all"),
        ("manifold-mining", "all"),
        ("oracle", "all"),
    ],
)
def test_one_of_each_kind_trains_other_layers(
    name: str, layers: str, small_collection: Path, cache: Path, tmp_path: Path
) -> None:
    changes = small(
        name, "rounds.steps=3", f"rounds.train={layers}", "rounds.batch_norm=frozen", "rounds.tuples=6"
    )
    model = train(
        small_collection, tmp_path / "run", name, changes=changes,
        labels=small_collection / "labels.csv", cache=cache,
    )  # fmt: skip
    assert all(torch.isfinite(value).all() for value in model.network.parameters())


def test_learning_from_labels_needs_labels(small_collection: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="oracle learns from labels: pass --labels"):
        train(small_collection, tmp_path / "run", "oracle", changes=small("oracle"))
    assert not (tmp_path / "run").exists()


def test_two_views_need_two_cached_ones() -> None:
    with pytest.raises(UserError, match="cached_views must be 2 or more: simclr"):
        load_recipe("simclr", ("rounds.cached_views=1",))


def test_a_rival_reads_no_contrastive_loss() -> None:
    with pytest.raises(UserError, match=r"nothing reads rounds\.0\.loss"):
        load_recipe("simclr", ("rounds.loss.margin=0.3",))


def test_every_method_has_a_recipe_or_is_our_own() -> None:
    assert set(method_names()) == {*OF_METHOD, "insclr", "insclr-released", "calibrated"}
    for name in OF_METHOD:
        assert {each.method.name for each in load_recipe(name).rounds} == {name}


def test_rivals_see_as_many_images_as_fast() -> None:
    def seen(name: str) -> float:
        total = 0.0
        for each in load_recipe(name).rounds:
            needs, method = create_method(each.method).needs, each.method
            slots = 1 + getattr(method, "neighbours", getattr(method, "images_per_tuple", 1) - 1)
            if name == "manifold-mining":
                slots = 4
            assert each.tuples * slots * needs.augmented == 256
            total += each.epochs * slots * needs.augmented  # of every image of the collection
        return total

    assert {seen(name) for name in OF_METHOD} == {seen("fast")}


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightly.loss", None)
    with pytest.raises(UserError, match=r"pip install 'insclr\[rivals\]'"):
        create_method(load_recipe("simclr").rounds[0].method)


def _command(collection: Path, run: Path, recipe: str, changes: tuple[str, ...], cache: Path) -> list[str]:
    command = [sys.executable, "-m", "insclr", "train", str(collection), "--out", str(run), "--resume"]
    command += ["--recipe", recipe, "--cache", str(cache)]
    return command + [part for change in changes for part in ("--set", change)]


@pytest.mark.parametrize("name", ["pcl", "cluster-contrast"])
def test_killed_inside_an_epoch_and_resumed_it_ends_in_the_same_weights(
    name: str, small_collection: Path, cache: Path, tmp_path: Path
) -> None:
    """Heads, a queue, a slow copy and clusters of the epoch; epochs are three and six steps long."""
    changes = small(name, "rounds.steps=40", "checkpoint_every=4")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(small_collection, whole, name, changes=changes, cache=cache)
    # As many threads as the runs in this process: sums of another split end in other last bits.
    threads = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(_command(small_collection, broken, name, changes, cache), env=threads)
    while process.poll() is None and not list((broken / "round-1").glob("step-*.pt")):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() != 0, "the run ended before it could be killed"
    train(small_collection, broken, name, changes=changes, cache=cache, resume=True)
    expected, found = _weights(whole), _weights(broken)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_two_ranks_train_what_one_does(small_collection: Path, cache: Path, tmp_path: Path) -> None:
    """MoCo's queue, PCL's prototypes, heads and slow copy, on images."""
    changes = small("pcl", "rounds.steps=8", "rounds.train=all", "rounds.batch_norm=frozen", "rounds.lr=1e-4")
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    train(small_collection, alone, "pcl", changes=changes, cache=cache)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            _command(small_collection, shared, "pcl", changes, cache),
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        said = rank.communicate(timeout=120)[1]
        assert rank.returncode == 0, said
    states = [torch.load(sorted((run / "round-1").glob("step-*.pt"))[-1]) for run in (alone, shared)]
    torch.testing.assert_close(
        states[0]["method"]["queue"], states[1]["method"]["queue"], atol=2e-4, rtol=1e-3
    )
    assert torch.equal(states[0]["method"]["place"], states[1]["method"]["place"])
    for name, value in states[0]["teacher"].items():
        torch.testing.assert_close(states[1]["teacher"][name], value, atol=2e-4, rtol=1e-2, msg=name)
    expected, found = _weights(alone), _weights(shared)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=2e-4, rtol=1e-2, msg=name)

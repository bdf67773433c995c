"""Several ranks do what one does."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from insclr.data.images import ImageList, Skipped, list_images, require_visible
from insclr.data.loader import Collection
from insclr.errors import UserError
from insclr.jobs.train import train as train_command
from insclr.memory.banks import open_banks
from insclr.memory.round_pool import map_large_pool, round_pool
from insclr.methods.calibrated import CalibratedMethod, CalibratedSettings
from insclr.methods.insclr import InsclrMethod, InsclrSettings
from insclr.methods.method import Method, RoundStart
from insclr.model.backbones import FeatureMap
from insclr.model.network import DescriptorNetwork, GeM, LateLayers
from insclr.ranks import Ranks, join_ranks
from insclr.recipe import Recipe, RoundRecipe
from insclr.run_folder import RunFolder
from insclr.tracking import read_metrics
from insclr.training.loss import contrastive_loss
from insclr.training.optimizer import average_gradients
from insclr.training.sources import ImageSource, Maps, MapSource

_TUPLES = 5  # two ranks take 3 and 2 of them


def _method(variant: Any) -> Method:
    if variant in ("calibrated", "late"):
        return CalibratedMethod(CalibratedSettings(neighbours=2, pool=10))
    common = {"neighbours": 2, "pool": 10, "batch_threshold": 0.5, "ignore_nearest": 1}
    if variant == "C":
        return InsclrMethod(InsclrSettings(variant="C", random_negatives=20, **common))  # type: ignore[arg-type]
    return InsclrMethod(InsclrSettings(k=3, repeats=2, **common))  # type: ignore[arg-type]


class _TinyBackbone(nn.Module):
    """Two convolutions around a batch-norm layer: enough for every kind of gradient."""

    channels = 12

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=4)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 12, 3, stride=2)

    def early(self, images: Tensor) -> Tensor:
        return images.float()[:, :, ::4, ::4]

    def late(self, maps: Tensor, _: int) -> FeatureMap:
        hidden = self.norm(self.first(maps)).relu()
        return FeatureMap(self.second(hidden).relu(), None)

    def forward(self, images: Tensor) -> FeatureMap:
        return self.late(images.float() / 255, 0)


def _source(
    network: DescriptorNetwork, method: Method, images: ImageList, late: bool, ranks: Ranks
) -> ImageSource | MapSource:
    if not late:
        recipe = RoundRecipe(tuples=_TUPLES, augmented_size=48, plain_size=64)
        collection = Collection(images, 0, Skipped())
        return ImageSource(network, method, collection, recipe, seed=1, ranks=ranks)
    maps = torch.rand(3, len(images), 3 * 16 * 16, generator=torch.Generator().manual_seed(4))
    layers = LateLayers(network, 64)
    return MapSource(method, Maps(layers, maps[0]), Maps(layers, maps[1:]), seed=1, ranks=ranks)


def _two_steps(ranks: Ranks, photos: Path, folder: Path, batch_norm: Any, variant: Any) -> dict[str, Tensor]:
    """Loss, gradients and running statistics of the second of two steps, on this rank's part of the batch."""
    torch.manual_seed(0)
    backbone: Any = _TinyBackbone()
    network = DescriptorNetwork(backbone, GeM(), dim=6, frozen_batch_norm=batch_norm == "frozen").eval()
    images = list_images(photos)
    pooled = torch.nn.functional.normalize(torch.rand(len(images), 12), dim=1)
    views = torch.nn.functional.normalize(pooled + 0.1 * torch.rand(2, len(images), 12), dim=2)
    method = _method(variant)
    method.prepare(RoundStart(network, pooled, views, _TUPLES, seed=1, folder=folder, ranks=ranks))
    source = _source(network, method, images, variant == "late", ranks)
    batches = source.batches(0, 2)
    for step in range(2):
        batch = next(batches)
        pairs = method.label(batch, step, torch.Generator().manual_seed(step))
        whole = None if batch.whole is None else batch.whole.augmented.flatten(0, 1)
        value = contrastive_loss(batch.augmented, pairs, batch=whole, margin=0.2, normalise="mean")
        network.zero_grad(set_to_none=True)
        (value.loss * ranks.weight(_TUPLES)).backward()
        if not source.averages:
            average_gradients(list(network.parameters()), ranks)
    ranks.barrier()
    share = len(ranks.share(_TUPLES)) / _TUPLES
    loss = sum(ranks.collect(float(value.loss.detach()) * share))
    found = {"loss": torch.tensor(loss)}
    if isinstance(method, InsclrMethod):
        found["bank"] = method.banks.plain.features.clone()
    found |= {
        name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None
    }
    batches.close()
    return found | {name: value.float() for name, value in network.named_buffers()}


_CASES = (("frozen", "D"), ("live", "D"), ("frozen", "C"), ("frozen", "calibrated"), ("live", "late"))


def _place(rank: int, world: int, port: int) -> dict[str, str]:
    """The environment that torchrun gives a rank."""
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return {name: str(value) for name, value in place.items()} | address


def _as_rank(rank: int, world: int, port: int, photos: Path, folder: Path) -> None:
    os.environ |= _place(rank, world, port)
    torch.set_num_threads(1)
    with join_ranks() as ranks:
        for batch_norm, method in _CASES:
            home = folder / f"{batch_norm}-{method}"
            torch.save(_two_steps(ranks, photos, home, batch_norm, method), folder / f"{home.name}-{rank}.pt")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_two_ranks_have_the_loss_gradients_and_banks_of_one(small_collection: Path, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_as_rank, (2, _free_port(), small_collection, tmp_path), nprocs=2)  # type: ignore[attr-defined]
    for batch_norm, method in _CASES:
        alone = _two_steps(Ranks(), small_collection, tmp_path, batch_norm, method)
        assert alone["backbone.first.weight"].abs().max() > 1e-3
        for rank in range(2):
            found = torch.load(tmp_path / f"{batch_norm}-{method}-{rank}.pt")
            assert found.keys() == alone.keys()
            for name in alone:
                torch.testing.assert_close(
                    found[name], alone[name], atol=1e-5, rtol=1e-5, msg=f"{method} {name}"
                )


_RECIPE = """
workers = 0
guard = true
checkpoint_every = 2

[network]
dim = 16
bias = true
initial_fc = "pca"

[[rounds]]
train = "fc"
steps = 4
tuples = 8
augmented_size = 32
plain_size = 32
cached_views = 2
lr = 1e-3
method = { METHOD }
loss = { margin = "auto", normalise = "mean" }

[[rounds]]
steps = 4
tuples = 4
augmented_size = 32
plain_size = 32
lr = 1e-5
batch_norm = "frozen"
method = { METHOD }
loss = { margin = "auto", normalise = "mean" }
"""
_PAPER = 'name = "insclr", neighbours = 2, pool = 20, batch_threshold = "auto", sparsity = "auto", k = 2, repeats = 2'
_LATE = """
[[rounds]]
train = "late"
steps = 2
tuples = 8
augmented_size = 32
plain_size = 32
lr = 1e-5
batch_norm = "frozen"
precision = "fp32"
method = { METHOD }
loss = { margin = "auto", normalise = "mean" }
"""
# What ships also trains late layers, decides on cached views in every kind of round, and makes its start anew.
_SHIPPED = (
    (_RECIPE + _LATE)
    .replace("METHOD", 'name = "calibrated", neighbours = 2, pool = 20')
    .replace('initial_fc = "pca"', 'initial_fc = "views"\nrenew_initial_fc = true')
)


def _start_ranks(world: int, photos: Path, run: Path, recipe: Path) -> list[subprocess.Popen[str]]:
    """What torchrun does: the same command in several processes that are told their places."""
    command = [sys.executable, "-m", "insclr", "train", str(photos), "--out", str(run)]
    port = _free_port()
    return [
        subprocess.Popen(
            [*command, "--recipe", str(recipe), "--resume"],
            env=os.environ | _place(rank, world, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


@pytest.mark.parametrize(
    ("text", "resumed_by"),
    [(_RECIPE.replace("METHOD", _PAPER), 1), (_SHIPPED, 3)],
    ids=["insclr", "calibrated"],
)
def test_a_killed_rank_ends_the_job_and_any_number_of_ranks_continues_it(
    text: str, resumed_by: int, small_collection: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text)
    alone, run = tmp_path / "alone", tmp_path / "ranks"
    train_command(small_collection, alone, recipe)

    first, second = _start_ranks(2, small_collection, run, recipe)
    while first.poll() is None and not list((run / "round-2").glob("step-*.pt")):
        time.sleep(0.005)
    second.send_signal(signal.SIGKILL)
    said = first.communicate(timeout=120)[1]
    assert first.returncode == 2, said
    assert "another rank of this training has ended" in said
    assert not (run / "model.safetensors").exists()

    for rank in _start_ranks(resumed_by, small_collection, run, recipe):
        said = rank.communicate(timeout=120)[1]
        assert rank.returncode == 0, said
    expected, found = (safetensors.torch.load_file(each / "model.safetensors") for each in (alone, run))
    for name in expected:
        # A start that is made anew whitens features in half precision and magnifies their last bits: weights of the
        # fc (up to 1) move by thousandths, and gradients near zero change sign, each worth a step of the rate 1e-5.
        within = 2e-5 if text != _SHIPPED else 2e-2 if name.startswith("fc.") else 1e-4
        torch.testing.assert_close(found[name], expected[name], atol=within, rtol=1e-3, msg=name)
    ends = [[r for r in read_metrics(each) if r.get("event") == "end"] for each in (alone, run)]
    assert [r["steps"] for r in ends[0]] == [r["steps"] for r in ends[1]]
    assert len(ends[0]) == text.count("[[rounds]]")
    assert not list(run.rglob("*.part"))
    assert not list(run.glob("round-*/scratch"))


def test_the_tuples_of_a_batch_are_dealt_out_whole() -> None:
    parts = [Ranks(rank=rank, world=3).share(8) for rank in range(3)]
    assert [list(part) for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    # Gradients are averaged over 3 ranks: 3/8 + 3/8 + 2/8 of the batch.
    assert [Ranks(rank=rank, world=3).weight(8) for rank in range(3)] == [9 / 8, 9 / 8, 6 / 8]
    with pytest.raises(UserError, match="4 ranks cannot share a batch of 3 tuples"):
        Ranks(world=4).share(3)


def test_a_rank_that_does_not_see_the_files_fails_with_a_message(
    small_collection: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="sees none of the images"):
        require_visible(ImageList(tmp_path, ("a.jpg", "b.jpg")))
    require_visible(list_images(small_collection))
    with pytest.raises(UserError, match="does not see the run folder"):
        RunFolder(tmp_path / "run", Recipe(), resume=True, first=False)


def test_banks_are_restored_whether_memory_or_files_held_them(tmp_path: Path) -> None:
    rows = torch.randn(30, 4)
    memory = open_banks(30, 4, torch.float16, tmp_path, Ranks())
    mapped = open_banks(30, 4, torch.float16, tmp_path / "a", Ranks(), in_memory=0)
    assert not memory.files
    assert set(mapped.files) == {"plain", "augmented"}
    memory.write(torch.arange(30), rows, 2 * rows)
    mapped.restore(memory.state_dict(), {}, Ranks())
    assert torch.equal(mapped.augmented.features, (2 * rows).half())
    again = open_banks(30, 4, torch.float16, tmp_path, Ranks())
    again.restore(mapped.state_dict(), mapped.files, Ranks())
    assert torch.equal(again.plain.features, rows.half())


def test_a_bank_file_of_another_size_is_refused(tmp_path: Path) -> None:
    open_banks(30, 4, torch.float32, tmp_path, Ranks(), in_memory=0)
    with pytest.raises(UserError, match="holds 480 bytes, this run needs 496"):
        open_banks(31, 4, torch.float32, tmp_path, Ranks(), in_memory=0)
    memory = open_banks(31, 4, torch.float32, tmp_path, Ranks())
    copies = {name: tmp_path / f"node-0-{name}.bank" for name in ("plain", "augmented")}
    with pytest.raises(UserError, match="120 numbers, this run needs 124"):
        memory.restore({"plain": {}, "augmented": {}}, copies, Ranks())


def test_a_large_pool_moves_to_files_unchanged(tmp_path: Path) -> None:
    features = torch.nn.functional.normalize(torch.randn(40, 8), dim=1)
    small = round_pool(features, 5, tmp_path, Ranks(), torch.device("cpu"))
    assert map_large_pool(small, tmp_path, Ranks()) is small
    large = round_pool(features, 5, tmp_path, Ranks(), torch.device("cpu"), large=10)
    mapped = map_large_pool(large, tmp_path, Ranks(), large=10)
    assert torch.equal(mapped.ids, small.ids)
    assert mapped.similarities.dtype == torch.float16
    torch.testing.assert_close(mapped.similarities.float(), small.similarities, atol=1e-3, rtol=0)
    mapped.give_back()
    assert torch.equal(mapped.ids, small.ids)


def test_a_large_collection_is_searched_approximately_and_its_recall_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(100, 1, 32, generator=generator)
    pictures = (centres + 0.8 * torch.randn(100, 50, 32, generator=generator)).flatten(0, 1)
    features = torch.nn.functional.normalize(pictures, dim=1)
    device = torch.device("cpu")
    pool = round_pool(features, 20, tmp_path, Ranks(), device, approximate_from=5000)
    assert 0.9 < pool.recall < 1
    assert "of the true neighbours" in caplog.text
    blocks = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    again = round_pool(features, 20, tmp_path, Ranks(), device, approximate_from=5000)
    assert torch.equal(pool.ids, again.ids)
    assert blocks == {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}  # nothing was done twice
    assert round_pool(features, 20, tmp_path, Ranks(), device).recall == 1.0

"""A whole training step against the bare network: what everything around the network costs.

The bare network is the augmented view's forward and backward pass and the plain view's forward pass on tensors
that lie in memory. The step is `train_steps` on photos: reading, views, banks, mining, loss, Adam, log.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from insclr.data.images import ImageList, Skipped
from insclr.data.loader import Collection
from insclr.data.workers import default_workers
from insclr.methods import create_method
from insclr.methods.calibrated import CalibratedSettings
from insclr.methods.insclr import InsclrSettings
from insclr.methods.method import Batch, RoundStart
from insclr.model.device import keep_freed_memory
from insclr.model.network import DescriptorNetwork, create_network
from insclr.recipe import NetworkRecipe, RoundRecipe
from insclr.tracking import SilentTracker
from insclr.training import sources
from insclr.training.steps import Round, train_steps
from photos import draw_photos
from table import Row, milliseconds
from timing import seconds

_IMAGES = 1500
_WARM = 3  # steps until the loader's queue is as full as it stays


@dataclass(frozen=True)
class Case:
    """A network and a batch."""

    name: str
    backbone: str
    dim: int
    size: int
    tuples: int
    steps: int
    turns: int
    method: InsclrSettings | CalibratedSettings = field(default_factory=InsclrSettings)


CASES = (
    Case(
        "efficientnet_lite0, 160 px, 64 images", "efficientnet_lite0", 512, 160, tuples=16, steps=6, turns=3
    ),
    Case(
        "the same with the calibrated method",
        "efficientnet_lite0",
        512,
        160,
        tuples=16,
        steps=6,
        turns=3,
        method=CalibratedSettings(),
    ),
    Case("resnet50, 224 px, 16 images", "resnet50", 2048, 224, tuples=4, steps=3, turns=3),
)


def measure() -> list[Row]:
    keep_freed_memory()  # as training does; it helps both sides
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        images = draw_photos(Path(scratch) / "photos", 300)
        # Every file several times over: as many images as a pool of 500 needs, with little to draw.
        images = ImageList(images.root, images.paths * (_IMAGES // 300))
        for case in CASES:
            rows += _measure(case, images, Path(scratch) / case.backbone)
    return rows


@dataclass
class TimedSource:
    """Notes when each batch is asked for: from one to the next is one whole step."""

    inner: Any
    asked: list[float] = field(default_factory=list)
    teacher: None = None
    averages: bool = False

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The inner source's batches."""
        batches = self.inner.batches(first, last)
        while True:
            self.asked.append(time.perf_counter())
            batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def pool_features(self) -> Tensor:
        """The inner source's features of all images."""
        return self.inner.pool_features()


def _measure(case: Case, images: ImageList, folder: Path) -> list[Row]:
    recipe = RoundRecipe(
        tuples=case.tuples,
        augmented_size=case.size,
        plain_size=case.size,
        batch_norm="frozen",
        method=case.method,
    )
    network = create_network(NetworkRecipe(backbone=case.backbone, dim=case.dim), pretrained=False)
    network.frozen_batch_norm = True
    pooled = torch.nn.functional.normalize(torch.randn(len(images), network.backbone.channels), dim=1)
    needs = create_method(case.method).needs
    whole, waits, bare = [], [], []
    for _ in range(case.turns):
        steps, waited = _steps(case, recipe, network, images, pooled, folder)
        whole.append(steps)
        waits.append(waited)
        bare.append(_bare(case, network, plain=needs.plain or bool(needs.scales)))
    ratio = statistics.median(w / b for w, b in zip(whole, bare, strict=True))
    step, alone = statistics.median(whole), statistics.median(bare)
    waited = statistics.median(waits) / step
    return [
        Row(
            f"step / bare network: {case.name}",
            milliseconds(step),
            milliseconds(alone),
            f"{ratio:.3f}",
            "<= 1.10",
            ratio <= 1.10,
        ),
        Row("the network waits for data", f"{waited:.1%} of a step"),
    ]


def _steps(
    case: Case,
    recipe: RoundRecipe,
    network: DescriptorNetwork,
    images: ImageList,
    pooled: Tensor,
    folder: Path,
) -> tuple[float, float]:
    """Median seconds of a step, and of the wait for data in it."""
    method = create_method(case.method)
    views = torch.nn.functional.normalize(pooled + 0.01 * torch.randn(2, *pooled.shape), dim=2)
    method.prepare(RoundStart(network, pooled, views, case.tuples, seed=0, folder=folder))
    source = TimedSource(
        sources.ImageSource(network, method, Collection(images, default_workers(), Skipped()), recipe, seed=0)
    )
    steps = _WARM + case.steps
    planned = recipe.with_(steps=steps + 1)
    this = Round(
        number=1,
        recipe=planned,
        network=network,
        source=source,  # type: ignore[arg-type]
        method=method,
        margin=0.4,
        folder=Path(tempfile.mkdtemp(dir=folder)),
        tracker=SilentTracker(),
        seed=0,
        checkpoint_every=10**9,
    )
    waits: list[float] = []
    with TimedLoader(waits):
        train_steps(this)
    taken = [b - a for a, b in itertools.pairwise(source.asked)]
    return statistics.median(taken[_WARM:steps]), statistics.median(waits[_WARM:steps])


class TimedLoader:
    """While open, notes how long training waits for each batch of views."""

    def __init__(self, waits: list[float]) -> None:
        self.waits = waits

    def __enter__(self) -> None:
        self.original = sources.view_batches  # type: ignore[attr-defined]
        sources.view_batches = self._timed  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        sources.view_batches = self.original  # type: ignore[attr-defined]

    def _timed(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        batches = self.original(*arguments, **options)
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.waits.append(time.perf_counter() - began)
            if batch is None:
                return
            yield batch


def _bare(case: Case, network: DescriptorNetwork, *, plain: bool) -> float:
    images = case.tuples * 4
    whole, augmented = torch.randint(0, 256, (2, images, 3, case.size, case.size), dtype=torch.uint8)
    weights = torch.randn(images, network.dim)

    def work() -> None:
        if plain:
            network.eval()
            with torch.no_grad():
                network(whole)
        network.train()
        network.zero_grad(set_to_none=True)
        (network(augmented) * weights).sum().backward()

    work()
    return statistics.median(seconds(work) for _ in range(case.steps))

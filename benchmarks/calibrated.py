"""The calibrated method at the scale of Google Landmarks v2: what a round's beginning and a step cost as N grows.

    python benchmarks/calibrated.py [N ...] [--searched 120000]

Each N is measured in a process of its own. The pooled features have 64 channels, so that the five views of a million
images fit on any disk; the descriptors have 512 dimensions as always, and the structure of image descriptors (see
pool.py). Of more images than --searched the candidates are drawn instead of searched for, which takes most of the
time: everything else is as it is. Memory is what the process holds at most in each stage, its own and not that of
mapped files.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from insclr.methods import calibrated
from insclr.methods.calibrated import CalibratedSettings
from insclr.methods.method import RoundStart
from insclr.model.network import DescriptorNetwork, GeM
from insclr.neighbours.pool import Pool
from insclr.recipe import RoundRecipe
from insclr.tracking import SilentTracker
from insclr.training.sources import PooledSource
from insclr.training.steps import Round, train_steps
from table import Row, markdown, milliseconds

SIZES = (12_000, 120_000, 1_200_000)
SEARCHED = 120_000  # images; the candidates of more take the better part of an hour to find, and are drawn
CHANNELS, DIM, VIEWS, TUPLES, STEPS = 64, 512, 4, 64, 300
STAGES = {
    "_describe_views": "describing the views",
    "round_pool": "candidate pool",
    "estimate_size": "size of an instance",
    "random_pairs": "random pairs",
    "measure_own_views": "own views",
    "_label_in_blocks": "labels of all candidates",
    "TupleSampler": "sampler",
}


class NoBackbone(nn.Module):
    """Stands where no image is ever seen."""

    channels = CHANNELS


def collection(images: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pooled features (N, C) and those of the views (V, N, C) in half precision: 30 images an instance."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.arange(1, CHANNELS + 1) ** -0.45
    things = max(4, images // 30)
    centres = torch.randn(things, CHANNELS, generator=generator) * axes
    plain = torch.empty(images, CHANNELS, dtype=torch.float16)
    views = torch.empty(VIEWS, images, CHANNELS, dtype=torch.float16)
    for rows in torch.arange(images).split(65_536):
        thing = torch.randint(things, (len(rows),), generator=generator)
        image = centres[thing] + 0.5 * torch.randn(len(rows), CHANNELS, generator=generator) * axes
        plain[rows] = normalize(image, dim=1).half()
        for view in views:
            moved = image + 0.3 * torch.randn(len(rows), CHANNELS, generator=generator) * axes
            view[rows] = normalize(moved, dim=1).half()
    return plain, views


class Peak:
    """While open, the most memory of its own that the process holds, looked at every 20 ms."""

    def __enter__(self) -> "Peak":
        self.most, self._over = _own_memory(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, _own_memory())


def _own_memory() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024.0 * int(line.split()[1])
    return 0.0


def drawn_pool(descriptors: Tensor, size: int, *_: object) -> Pool:
    """Random candidates with random similarities, best first, in half precision as a large pool has them."""
    generator = torch.Generator().manual_seed(0)
    images = len(descriptors)
    ids = torch.empty(images, size, dtype=torch.int32)
    similarities = torch.empty(images, size, dtype=torch.float16)
    for rows in torch.arange(images).split(2048):
        drawn = (
            rows[:, None] + 1 + torch.randint(images - 1, (len(rows), size), generator=generator)
        ) % images
        near = torch.rand(drawn.shape, generator=generator).sort(1, descending=True).values
        ids[rows], similarities[rows] = drawn.int(), near.half()
    return Pool(ids, similarities)


def one_size(images: int, *, drawn: bool = False) -> dict[str, Any]:
    """Seconds of processor time and peak memory of every stage, and the seconds of a step."""
    plain, views = collection(images)
    backbone: Any = NoBackbone()
    network = DescriptorNetwork(backbone, GeM(), dim=DIM)
    found: dict[str, Any] = {"features": _own_memory(), "stages": {}}
    if drawn:
        calibrated.round_pool = drawn_pool  # type: ignore[assignment, attr-defined]
    for name in STAGES:
        setattr(calibrated, name, _timed(getattr(calibrated, name), STAGES[name], found["stages"]))
    method = calibrated.CalibratedMethod(CalibratedSettings())
    with tempfile.TemporaryDirectory(dir=os.environ.get("INSCLR_BENCH_FOLDER")) as scratch, Peak() as peak:
        start = RoundStart(network, plain, views, TUPLES, seed=0, folder=Path(scratch))
        began = time.process_time()
        prepared = method.prepare(start)
        found |= {"prepare": time.process_time() - began, "pairs": prepared.positives_per_image}
        found |= {"pool": method.pool.size, "recall": method.pool.recall}
        found["step"] = _step(network, method, plain, views, Path(scratch))
    return found | {"most": peak.most}


def _timed(work: Callable[..., Any], name: str, stages: dict[str, tuple[float, float]]) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        with Peak() as peak:
            result = work(*arguments, **options)
        took, most = stages.get(name, (0.0, 0.0))
        stages[name] = took + time.process_time() - began, max(most, peak.most)
        return result

    return timed


def _step(network: DescriptorNetwork, method: Any, plain: Tensor, views: Tensor, folder: Path) -> float:
    """Processor time of a step, from the second epoch's draw to Adam, without the first few."""
    recipe = RoundRecipe(train="fc", steps=STEPS, tuples=TUPLES, lr=1e-4, method=method.settings)
    source = PooledSource(network, method, plain, views, seed=0)
    this = Round(
        1, recipe, network, source, method, 0.3, folder / "round", SilentTracker(), 0, checkpoint_every=10**9
    )
    marks: list[float] = []
    label = method.label

    def marked(*arguments: Any) -> Any:
        marks.append(time.process_time())
        return label(*arguments)

    method.label = marked
    train_steps(this)
    taken = [b - a for a, b in itertools.pairwise(marks[10:])]
    return float(torch.tensor(taken).median())


def measure(sizes: tuple[int, ...] = SIZES, *, searched: int = SEARCHED) -> list[Row]:
    found = {size: _in_a_process(size, size > searched) for size in sizes}
    rows = []
    for title in STAGES.values():
        times = [found[size]["stages"].get(title, (0.0, 0.0)) for size in sizes]
        if any(took for took, _ in times):
            rows.append(_row(title, [f"{milliseconds(took)}, {_gb(most)}" for took, most in times], sizes))
    rows.append(
        _row("all of the round's beginning", [milliseconds(found[size]["prepare"]) for size in sizes], sizes)
    )
    steps = [found[size]["step"] for size in sizes]
    growth = steps[-1] / steps[0]
    spread = ", ".join(f"{milliseconds(t)} at {size:,}" for t, size in zip(steps, sizes, strict=True))
    rows.append(
        Row(
            f"a step of {TUPLES} tuples on cached features",
            spread,
            "",
            f"{growth:.2f} x",
            "<= 1.20",
            growth <= 1.2,
        )
    )
    rows.append(_row("most memory", [_gb(found[size]["most"]) for size in sizes], sizes))
    rows.append(_row("pool, its recall, positives an image", [_about(found[size]) for size in sizes], sizes))
    return rows  # fmt: skip


def _row(title: str, values: list[str], sizes: tuple[int, ...]) -> Row:
    return Row(title, "; ".join(f"{value} at {size:,}" for value, size in zip(values, sizes, strict=True)))


def _about(found: dict[str, Any]) -> str:
    return f"{found['pool']}, {found['recall']:.3f}, {found['pairs']:.1f}"


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def _in_a_process(images: int, drawn: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(images), "--searched", str(0 if drawn else images)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument(
        "--searched",
        type=int,
        default=SEARCHED,
        metavar="N",
        help="draw the candidates of more images than this",
    )
    parser.add_argument("--one", action="store_true", help="measure the first size in this process")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one_size(asked.sizes[0], drawn=asked.sizes[0] > asked.searched)))
    else:
        print(markdown(measure(tuple(asked.sizes), searched=asked.searched)))


if __name__ == "__main__":
    main()

"""Mining and loss of one step at the scale of Google Landmarks v2, against a straightforward version.

That version is written tuple by tuple and row by row, draws 10^5 random bank rows out of all N as negatives
(the paper's baseline B), and computes every similarity again in every repeat.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from insclr.checkpoint import save_checkpoint
from insclr.data.tuples import TupleSampler
from insclr.memory.banks import MemoryBanks, open_banks
from insclr.memory.round_pool import map_large_pool
from insclr.methods.insclr import InsclrMethod, InsclrSettings
from insclr.methods.method import Batch
from insclr.neighbours.pool import Pool
from insclr.ranks import Ranks
from insclr.training.loss import contrastive_loss
from table import Row, milliseconds
from timing import in_turns

GLDV2, SIZES = 1_200_000, (10_000, 100_000, 1_200_000)
POOL, DIM, TUPLES, SLOTS = 500, 2048, 16, 4
MEMORY = 5.0  # GB
_STEPS = 30
_NETWORK = 0.1  # seconds that the network takes for a batch, on a good GPU
_PASSING = torch.zeros(32 * 2**20)

# The paper's numbers, but every neighbour is selected: the largest query sets, so the most work.
SETTINGS = InsclrSettings(batch_threshold=-1.0)
LIKE_B = InsclrSettings(variant="B")
_MARGIN = 0.0


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        resident = _child("memory", scratch)
        times = _child("time", scratch)
    rows = []
    ours, rival = times[f"{GLDV2}"], times["straightforward"]
    title = f"mining + loss, N = 1.2 M, P = {POOL}, D = {DIM}, {TUPLES} tuples"
    rows.append(
        Row(
            title,
            milliseconds(ours),
            milliseconds(rival),
            f"{rival / ours:.0f} x",
            ">= 20 x",
            rival / ours >= 20,
        )
    )
    same = times["B"]
    rows.append(
        Row(
            "the same with 10^5 random rows (method B)",
            milliseconds(same),
            milliseconds(rival),
            f"{rival / same:.1f} x",
        )
    )
    steps = [times[f"{images}"] for images in SIZES]
    growth = max(steps) / min(steps)
    spread = ", ".join(f"{milliseconds(t)} at {images:,}" for t, images in zip(steps, SIZES, strict=True))
    rows.append(Row("growth of that with N", spread, "", f"{growth:.2f}", "<= 1.20", growth <= 1.20))
    peak = max(resident["filled"], resident["trained"], resident["saved"])
    rows.append(
        Row(
            "resident memory: two fp16 banks of 1.2 M x 2048, pool, steps, checkpoint",
            f"{peak:.1f} GB",
            f"{MEMORY:.0f} GB",
            "",
            f"<= {MEMORY:.0f} GB",
            peak <= MEMORY,
        )
    )
    return rows


def _child(task: str, scratch: str) -> dict[str, float]:
    """Each task in a process of its own, so that its memory is its own too."""
    done = subprocess.run(
        [sys.executable, __file__, task, scratch], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


class Scene:
    """Banks, a pool and a batch of random unit features of a collection of N images."""

    def __init__(self, images: int, folder: Path) -> None:
        chance = torch.Generator().manual_seed(images)
        self.banks = open_banks(images, DIM, torch.float16, folder / f"{images}", Ranks())
        self.pool = _random_pool(images, folder / f"{images}", chance)
        self.sampler = TupleSampler(self.pool.ids[:, : SLOTS + 1].clone(), TUPLES, SLOTS - 1, seed=0)
        self.method, self.like_b = self._method(SETTINGS), self._method(LIKE_B)
        self.chance = chance
        self.step = 0

    def _method(self, settings: InsclrSettings) -> InsclrMethod:
        method = InsclrMethod(settings)
        method.banks, method.pool = self.banks, self.pool
        return method

    def fill(self) -> None:
        """Random unit rows in both banks; every block of them is the first one turned."""
        block = functional.normalize(torch.randn(8192, DIM, generator=self.chance), dim=1)
        for start in range(0, len(self.banks.plain), len(block)):
            rows = block.roll(start // len(block), 1)[: len(self.banks.plain) - start]
            self.banks.plain.fill(rows, start)
            self.banks.augmented.fill(rows, start)

    def network(self) -> None:
        """Stands for the network at work on the next batch: other tuples every time, as in training."""
        self.step += 1
        ids = self.sampler.step(self.step)
        time.sleep(_NETWORK)
        # Its own data pass through the processor's caches.
        _PASSING.add_(1)
        plain, augmented = functional.normalize(
            torch.randn(2, TUPLES, SLOTS, DIM, generator=self.chance), dim=-1
        )
        self.batch = Batch(ids, augmented[None].requires_grad_(), plain)


def _random_pool(images: int, folder: Path, chance: torch.Generator) -> Pool:
    # Drawn in blocks, as int32 right away: the memory of this process is what is measured.
    ids = torch.empty(images, POOL, dtype=torch.int32)
    for block in ids.split(100_000):
        block.random_(0, images, generator=chance)
    similarities = torch.zeros(images, POOL, dtype=torch.float16)
    return map_large_pool(Pool(ids, similarities), folder, Ranks())


def ours(scene: Scene, method: InsclrMethod) -> Tensor:
    pairs = method.label(scene.batch, scene.step, scene.chance)
    value = contrastive_loss(scene.batch.augmented, pairs, margin=_MARGIN)
    value.loss.backward()
    return value.loss


def straightforward(scene: Scene) -> Tensor:
    """What one would write first: a loop over tuples, repeats and rows."""
    batch, banks = scene.batch, scene.banks
    banks.write(batch.ids, batch.plain, batch.augmented)  # type: ignore[arg-type]
    chosen_rows = torch.randperm(len(banks.plain))[: LIKE_B.random_negatives]
    random = banks.augmented.features[chosen_rows].float()  # (100 000, D)
    everyone = batch.augmented.reshape(-1, DIM)
    losses = []
    for t in range(TUPLES):
        candidates = scene.pool.ids[batch.ids[t, 0]].long()
        plain = banks.plain.features[candidates].float()
        members = list(batch.plain[t])  # type: ignore[index]
        mined: list[int] = []
        for _ in range(SETTINGS.repeats):
            score = torch.stack([plain @ member for member in members]).mean(0)
            score[mined] = -torch.inf
            best = score.sort(descending=True).indices[: SETTINGS.k].tolist()
            mined += best
            members += [plain[place] for place in best]
        bank = banks.augmented.features[candidates].float()
        is_mined = torch.zeros(POOL, dtype=torch.bool)
        is_mined[mined] = True
        own = torch.zeros(len(everyone), dtype=torch.bool)
        own[t * SLOTS : (t + 1) * SLOTS] = True
        loss = batch.plain.new_zeros(())  # type: ignore[union-attr]
        for i in range(SLOTS):
            row = batch.augmented[t, i]
            in_batch, in_bank, in_random = everyone @ row, bank @ row, random @ row
            negatives = torch.cat([in_batch[~own], in_bank[~is_mined], in_random])
            positives = torch.cat([in_batch[own], in_bank[is_mined]])
            loss = loss + negatives[negatives > _MARGIN].sum() - positives.sum()
        losses.append(loss / SLOTS)
    total = torch.stack(losses).mean()
    total.backward()
    return total


def _time(folder: Path) -> dict[str, float]:
    scenes = {images: Scene(images, folder) for images in SIZES}
    for images, scene in scenes.items():
        if images != GLDV2:  # the files of the largest were filled by the task before
            scene.fill()
    largest = scenes[GLDV2]
    places = {f"{images}": scene for images, scene in scenes.items()}
    times = in_turns(
        {name: lambda scene=scene: ours(scene, scene.method) for name, scene in places.items()},  # type: ignore[misc]
        turns=_STEPS,
        warm=5,
        before=lambda name: places[name].network(),
    )
    rivals = {"straightforward": lambda: straightforward(largest), "B": lambda: ours(largest, largest.like_b)}
    return times | in_turns(rivals, turns=3, before=lambda _: largest.network())


def _memory(folder: Path) -> dict[str, float]:
    """Peak resident memory, in GB, after each stage; it can only rise."""
    scene = Scene(GLDV2, folder)
    scene.fill()
    found = {"filled": _peak()}
    for _ in range(_STEPS):
        scene.network()
        ours(scene, scene.method)
    found["trained"] = _peak()
    _save(scene.banks, folder / "checkpoints")
    return found | {"saved": _peak()}


def _save(banks: MemoryBanks, folder: Path) -> None:
    save_checkpoint(folder, 1, {"banks": banks.state_dict()}, keep=1, files=banks.files)
    for file in folder.iterdir():
        file.unlink()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    task = {"time": _time, "memory": _memory}[sys.argv[1]]
    print(json.dumps(task(Path(sys.argv[2]))))

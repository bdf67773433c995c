"""A look into the mining: what it decides for some anchors with the banks as they are now."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from insclr.data.images import ImageList
from insclr.files import whole_file
from insclr.memory.bank import MemoryBanks
from insclr.mining.criteria import Criteria
from insclr.mining.verdicts import Verdicts
from insclr.neighbours.pool import Pool
from insclr.training.step import Batch, Decision, decide

MEASURED = 256  # anchors behind the histograms and the summary
PASSED_OVER = 4  # candidates shown that came nearest to being mined
_BLOCK = 32  # tuples decided at once
_PAIRS = 20_000
# Fixed for all rounds and runs, so that histograms can be laid beside each other.
_EDGES = torch.linspace(-1, 1, 81)


def inspect_round(
    pool: Pool,
    banks: MemoryBanks,
    criteria: Criteria,
    images: ImageList,
    instances: Tensor | None,
    verdicts: Verdicts | None = None,
    *,
    neighbours: int,
    anchors: int = 12,
    seed: int = 0,
) -> dict[str, Any]:
    """What the mining takes for the same thing, as plain JSON values: sample tuples, histograms, a summary.

    `instances` (N,), -1 where unknown, say which choices are right. Equal seeds look at equal anchors, so
    that inspections of several rounds can be compared.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = len(banks.plain)
    sample = torch.randperm(rows, generator=generator)[: max(anchors, MEASURED)]
    truth = torch.full((rows,), -1) if instances is None else instances.cpu()
    tuples: list[dict[str, Any]] = []
    tally = _Tally(truth)
    for batch in _batches(sample, pool, banks, neighbours):
        decision = decide(batch, pool, banks, criteria, verdicts)
        candidates = pool.ids[batch.ids[:, 0]].long()  # (T, P)
        similarities = torch.einsum("td,tpd->tp", batch.plain[:, 0], banks.plain.read(candidates))
        tally.add(batch, decision, candidates, similarities)
        for place in range(min(len(batch.ids), anchors - len(tuples))):
            tuples.append(_describe(place, batch, decision, candidates, similarities, images, truth))
    return {
        "method": criteria.method,
        "criteria": dataclasses.asdict(criteria),
        "labelled": instances is not None,
        "summary": tally.summary(len(sample)),
        "histograms": {
            "edges": [round(edge, 3) for edge in _EDGES.tolist()],
            "counts": {"random pairs": _count(_random_pairs(banks, generator)), **tally.histograms()},
        },
        "tuples": tuples,
    }


def save_inspection(folder: Path, name: str, inspection: dict[str, Any]) -> None:
    """Write an inspection whole, as folder/inspection-NAME.json."""
    with whole_file(folder / f"inspection-{name}.json") as scratch:
        scratch.write_text(json.dumps(inspection))


def load_inspection(folder: Path, name: str) -> dict[str, Any] | None:
    """Read what `save_inspection` wrote; None where there is nothing."""
    file = folder / f"inspection-{name}.json"
    return dict(json.loads(file.read_text())) if file.exists() else None


def _batches(anchors: Tensor, pool: Pool, banks: MemoryBanks, neighbours: int) -> Iterator[Batch]:
    """The anchors with their nearest neighbours, with the features that the banks hold of them."""
    for block in anchors.split(_BLOCK):
        ids = torch.cat([block[:, None], pool.ids[block, :neighbours].long()], dim=1)  # (T, M)
        plain = banks.plain.read(ids)  # (T, M, D)
        yield Batch(ids, plain, banks.augmented.read(ids), (plain,))


class _Tally:
    """Counts over all inspected anchors."""

    def __init__(self, truth: Tensor) -> None:
        self.truth = truth
        self.similarities: dict[str, list[Tensor]] = {
            "nearest neighbour": [],
            "tuple members": [],
            "mined": [],
        }
        # Of each kind of choice: how many there are, how many can be judged, how many of those are right.
        self.choices: dict[str, list[int]] = {}

    def add(self, batch: Batch, decision: Decision, candidates: Tensor, similarities: Tensor) -> None:
        """Take in the decisions on T tuples; `similarities` (T, P) of the anchors to their candidates."""
        own = torch.einsum("td,tnd->tn", batch.plain[:, 0], batch.plain[:, 1:])
        self.similarities["nearest neighbour"].append(own[:, :1].flatten())
        self.similarities["tuple members"].append(own.flatten())
        members, selected = batch.ids[:, 1:], decision.selected[:, 1:]
        self._judge("nn", batch.ids, members, torch.ones_like(selected))
        self._judge("batch", batch.ids, members, selected)
        if decision.expansion is not None:
            mined, repeat = decision.expansion.positives, decision.expansion.repeat
            self.similarities["mined"].append(similarities[mined])
            self._judge("memory", batch.ids, candidates, mined)
            for number in range(1, int(repeat.max()) + 1):
                self._judge(f"repeat {number}", batch.ids, candidates, repeat == number)

    def _judge(self, name: str, tuple_ids: Tensor, ids: Tensor, chosen: Tensor) -> None:
        anchor, other = self.truth[tuple_ids[:, :1]], self.truth[ids]
        known = chosen & (anchor >= 0) & (other >= 0)
        entry = self.choices.setdefault(name, [0, 0, 0])
        for place, mask in enumerate((chosen, known, known & (anchor == other))):
            entry[place] += int(mask.sum())

    def summary(self, anchors: int) -> dict[str, Any]:
        """Positives an anchor has of each kind, and the share of right ones where it is known."""
        kinds = {
            name: {"positives": count / anchors, "precision": right / known if known else None}
            for name, (count, known, right) in self.choices.items()
        }
        return {"anchors": anchors, **kinds}

    def histograms(self) -> dict[str, list[int]]:
        """Counts in the common bins."""
        empty = torch.empty(0)
        return {name: _count(torch.cat([*parts, empty])) for name, parts in self.similarities.items()}


def _describe(
    place: int,
    batch: Batch,
    decision: Decision,
    candidates: Tensor,
    similarities: Tensor,
    images: ImageList,
    truth: Tensor,
) -> dict[str, Any]:
    """One tuple of the batch, what was chosen for it and what was passed over."""
    anchor, *members = batch.ids[place].tolist()
    thing = int(truth[anchor])

    def picture(image: int, similarity: float) -> dict[str, Any]:
        known = thing >= 0 and truth[image] >= 0
        right = bool(truth[image] == thing) if known else None
        return {"path": images.paths[image], "similarity": round(similarity, 4), "right": right}

    own = (batch.plain[place, 1:] @ batch.plain[place, 0]).tolist()
    selected = decision.selected[place, 1:].tolist()
    pool_ids, near = candidates[place].tolist(), similarities[place].tolist()
    mined, passed = _ranked(place, decision, batch.ids[place], candidates[place])
    scores: list[float] = []
    repeats: list[int] = []
    if decision.expansion is not None:
        scores = decision.expansion.score[place].tolist()
        repeats = decision.expansion.repeat[place].tolist()

    def candidate(column: int) -> dict[str, Any]:
        score = scores[column] if scores and scores[column] > float("-inf") else None
        return picture(pool_ids[column], near[column]) | {
            "score": None if score is None else round(score, 4),
            "repeat": repeats[column] if repeats else 0,
        }

    return {
        "anchor": images.paths[anchor],
        "members": [
            picture(image, similarity) | {"selected": taken}
            for image, similarity, taken in zip(members, own, selected, strict=True)
        ],
        "mined": [candidate(column) for column in mined],
        "passed": [candidate(column) for column in passed],
    }


def _ranked(
    place: int, decision: Decision, tuple_ids: Tensor, candidates: Tensor
) -> tuple[list[int], list[int]]:
    """Columns of the mined, by repeat and score; and of the best that were not mined."""
    rest = ~(candidates[:, None] == tuple_ids).any(1)  # (P,)
    if decision.expansion is None:
        return [], rest.nonzero()[:PASSED_OVER, 0].tolist()
    score, repeat = decision.expansion.score[place], decision.expansion.repeat[place]
    order = score.sort(descending=True, stable=True).indices.tolist()
    mined = sorted((column for column in order if repeat[column] > 0), key=lambda column: int(repeat[column]))
    passed = [column for column in order if rest[column] and repeat[column] == 0]
    return mined, passed[:PASSED_OVER]


def _random_pairs(banks: MemoryBanks, generator: torch.Generator) -> Tensor:
    rows = len(banks.plain)
    first = torch.randint(rows, (_PAIRS,), generator=generator)
    second = (first + torch.randint(1, rows, (_PAIRS,), generator=generator)) % rows
    products = zip(first.split(2000), second.split(2000), strict=True)
    return torch.cat([(banks.plain.read(a) * banks.plain.read(b)).sum(1) for a, b in products])


def _count(values: Tensor) -> list[int]:
    bins = (torch.bucketize(values, _EDGES, right=True) - 1).clamp(0, len(_EDGES) - 2)
    return torch.bincount(bins, minlength=len(_EDGES) - 1).tolist()

"""What a run tells about itself as it goes: starts of rounds, mAP where labels are given, inspections, the guard."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from insclr.data.images import ImageList
from insclr.data.labels import Labels
from insclr.evaluation.evaluate import evaluate_labels
from insclr.methods.method import Method, Prepared, RoundStart
from insclr.mining.precision import mean_precision
from insclr.ranks import Ranks
from insclr.run_folder import RunFolder
from insclr.tracking import Tracker
from insclr.training.guard import Health
from insclr.training.inspect import inspect_method
from insclr.training.round import Trained

_MOST_GROUPED = 200_000  # images whose groups are counted


@dataclass(frozen=True)
class RunLogger:
    """Writes into the log and the run folder; only the first of several ranks does."""

    run: RunFolder
    tracker: Tracker
    images: ImageList
    instances: Tensor | None  # (N,) true instance of each image, -1 where no label names it
    ranks: Ranks

    def start(
        self, number: int, start: RoundStart, prepared: Prepared, *, new_start: bool, labels_used: bool
    ) -> None:
        """Note what a round begins with; `new_start` where the FC was given its start just before."""
        point = self.run.resume_point()
        if not self.ranks.first or (point is not None and point >= (number, 0)):
            return  # another rank's task, or written before the interruption
        of_start = self.run.start_reasons() if new_start else ()
        self.tracker.event(
            number,
            "start",
            reasons=[*of_start, *prepared.reasons],
            criteria=dict(prepared.criteria),
            **self._measured(start.descriptors),
            pairs=prepared.positives_per_image,
            pair_precision=self._pair_precision(prepared),
            **_grouped(prepared),
            **({"labels_used": True} if labels_used else {}),
        )

    def end(self, number: int, trained: Trained, method: Method) -> None:
        """Note what a round took: steps, seconds, and how many augmented views it saw."""
        steps, seconds = trained.steps, trained.seconds
        seen = steps * method.sampler.step(0).numel() * method.needs.augmented
        self.tracker.event(number, "end", step=steps, steps=steps, seconds=seconds, images=seen)

    def renewed(self, number: int) -> None:
        """Note that the FC that ships is a start made of what the other layers learned."""
        self.tracker.event(number, "renewed")

    def finish(self, number: int, end: RoundStart) -> None:
        """Note how good the network is that ships, where labels tell."""
        if self.instances is not None and self.ranks.first:
            self.tracker.event(number, "finish", **self._measured(end.descriptors))

    def skipped(self, number: int, reason: str, found: float | None) -> None:
        """Note that the guard left a round out."""
        message = f"Round {number} was left out: {reason}. It changed nothing."
        self.tracker.event(number, "guard", step=0, message=message, action="skip", pairs=found)

    def guarded(self, number: int, steps: int, after: Health, reason: str) -> None:
        """Note what the guard made of a round: undone for a `reason`, or kept."""
        self.tracker.event(
            number,
            "guard",
            step=steps,
            action="step back" if reason else "ok",
            message=f"Round {number} was undone: {reason}." if reason else f"Round {number} was kept.",
            **asdict(after),
        )

    def inspect(
        self, number: int, moment: Literal["start", "end"], method: Method, prepared: Prepared
    ) -> None:
        """Keep what the method decides for some anchors now."""
        if not self.ranks.first or (moment == "start" and self.run.inspection(number, "start") is not None):
            return  # another rank's task, or done before an interruption
        seen = inspect_method(method, prepared.criteria, self.images, self.instances)
        if seen is not None:
            self.run.save_inspection(number, moment, seen)

    def _pair_precision(self, prepared: Prepared) -> float | None:
        if self.instances is None or prepared.candidates is None or prepared.positive is None:
            return None
        anchors = torch.arange(len(prepared.candidates))
        return mean_precision(self.instances, anchors, prepared.candidates.long(), prepared.positive)

    def _measured(self, descriptors: Tensor) -> dict[str, Any]:
        """mAP and R@1 of descriptors (N, D) over the images whose instance is known; None without labels."""
        if self.instances is None:
            return {"map": None}
        known = (self.instances >= 0).nonzero()[:, 0].tolist()
        paths = tuple(self.images.paths[i] for i in known)
        names = tuple(str(int(self.instances[i])) for i in known)
        labels = Labels(self.images.root, paths, names)
        # A photo that is gone by now is no reason to stop: labels only measure here.
        found = evaluate_labels(descriptors[known].float(), labels, allow_missing=True)
        return {"map": found.map, "recall_at_1": found.recall(1)}


def _grouped(prepared: Prepared) -> dict[str, int]:
    """How many groups the positives make, and of how many images: those that take each other for the same."""
    if prepared.candidates is None or prepared.positive is None or len(prepared.positive) > _MOST_GROUPED:
        return {}
    count = len(prepared.positive)
    rows, places = prepared.positive.nonzero(as_tuple=True)
    columns = prepared.candidates[rows, places].long()
    ones = np.ones(len(rows), dtype=np.int8)
    graph = sparse.coo_array((ones, (rows.numpy(), columns.numpy())), (count, count)).tocsr()
    mutual = graph.minimum(graph.T)
    number = connected_components(mutual, directed=False)[1]
    sizes = np.bincount(number)
    return {"groups": int((sizes > 1).sum()), "grouped": int(sizes[sizes > 1].sum())}

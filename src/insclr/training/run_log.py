"""Log a run: steps, starts of rounds, mAP and precision with labels, the guard, inspections."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from insclr.data.labels import Labels
from insclr.evaluation.evaluate import evaluate_labels
from insclr.methods.method import Batch, Method, Pairs, Prepared, RoundStart
from insclr.mining.candidates import mean_precision
from insclr.ranks import Ranks
from insclr.tracking import Tracker
from insclr.training.guard import Health
from insclr.training.inspect import inspect_method
from insclr.training.state import Run

_LOG_EVERY = 10  # steps
LARGE, SAMPLED_QUERIES = 20_000, 2_000  # of more labelled images so many are queries: all would take days


class StepLog:
    """Sums the numbers of the steps and logs their means every ten steps."""

    def __init__(self, tracker: Tracker, number: int, instances: Tensor | None, ranks: Ranks) -> None:
        self.sums: dict[str, float] = {}  # since the last record; "#name" counts the tuples behind "name"
        self._tracker = tracker
        self._number = number
        self._instances = instances
        self._ranks = ranks

    def add(
        self, step: int, batch: Batch, pairs: Pairs | None, numbers: Mapping[str, float]
    ) -> dict[str, str]:
        """Take in the numbers of a step; gives back the newest, to be shown."""
        numbers = {**numbers, **self._precision(batch, pairs)}
        if pairs is not None:
            numbers["bank_positives"] = (
                0.0 if pairs.mined is None else float(pairs.mined.sum()) / len(batch.ids)
            )
        for name, number in numbers.items():
            self.sums[name] = self.sums.get(name, 0.0) + number * len(batch.ids)
            self.sums[f"#{name}"] = self.sums.get(f"#{name}", 0.0) + len(batch.ids)
        if step % _LOG_EVERY == 0:
            self.collect()
            means = {name: self.sums[name] / self.sums[f"#{name}"] for name in self.sums if name[0] != "#"}
            self._tracker.step(self._number, step, **means)
            self.sums.clear()
        shown = {"loss": f"{numbers['loss']:.3f}"}
        if pairs is not None:
            shown["positives"] = f"{numbers['batch_positives'] + numbers['bank_positives']:.1f}"
        return shown

    def collect(self) -> None:
        """Move the sums of all ranks to the first one."""
        if self._ranks.alone:
            return
        total: dict[str, float] = {}
        for sums in self._ranks.collect(self.sums):
            for name, value in sums.items():
                total[name] = total.get(name, 0.0) + value
        self.sums = total if self._ranks.first else {}

    def _precision(self, batch: Batch, pairs: Pairs | None) -> dict[str, float]:
        """Mean share of right ones among the pseudo positives of a tuple, where labels were given."""
        if self._instances is None or pairs is None:
            return {}
        truth = self._instances.to(batch.ids.device)
        anchors, members, chosen = batch.ids[:, 0], batch.ids[:, 1:], pairs.query[:, 1:]
        shares = {
            "nn_precision": mean_precision(truth, anchors, members, torch.ones_like(chosen)),
            "batch_precision": mean_precision(truth, anchors, members, chosen),
        }
        if pairs.mined_ids is not None and pairs.mined is not None:
            shares["memory_precision"] = mean_precision(truth, anchors, pairs.mined_ids, pairs.mined)
        return {name: share for name, share in shares.items() if share is not None}


_MOST_GROUPED = 200_000  # images whose groups are counted


def log_round_start(run: Run, number: int, start: RoundStart, prepared: Prepared, *, new_fc: bool) -> None:
    """Log what a round begins with; `new_fc` where the FC was given initial weights just before."""
    point = run.folder.resume_point()
    if not run.ranks.first or (point is not None and point >= (number, 0)):
        return  # another rank's task, or written before the interruption
    of_fc = run.folder.initial_fc_reasons() if new_fc else ()
    run.tracker.event(
        number,
        "start",
        reasons=[*of_fc, *prepared.reasons],
        criteria=dict(prepared.criteria),
        **_measure(run, start.descriptors),
        pairs=prepared.positives_per_image,
        pair_precision=_pair_precision(run.instances, prepared),
        **_count_groups(prepared),
        **({"labels_used": True} if start.instances is not None else {}),
    )


def log_skipped(run: Run, number: int, reason: str, pairs: float | None = None) -> None:
    """Log that the guard left a round out."""
    message = f"Round {number} was left out: {reason}. It changed nothing."
    run.tracker.event(number, "guard", step=0, message=message, action="skip", pairs=pairs)


def log_guard(run: Run, number: int, steps: int, after: Health, reason: str) -> None:
    """Log whether the guard kept a round or undid it for a `reason`."""
    run.tracker.event(
        number,
        "guard",
        step=steps,
        action="step back" if reason else "ok",
        message=f"Round {number} was undone: {reason}." if reason else f"Round {number} was kept.",
        **asdict(after),
    )


def log_result(run: Run, end: RoundStart) -> None:
    """Log how good the finished network is, where labels are given."""
    if run.instances is not None and run.ranks.first:
        run.tracker.event(len(run.recipe.rounds) + 1, "finish", **_measure(run, end.descriptors))


def save_inspection(
    run: Run, number: int, moment: Literal["start", "end"], method: Method, prepared: Prepared
) -> None:
    """Keep what the method decides for some anchors now."""
    if not run.ranks.first or (moment == "start" and run.folder.inspection(number, "start") is not None):
        return  # another rank's task, or done before an interruption
    found = inspect_method(method, prepared.criteria, run.images, run.instances)
    if found is not None:
        run.folder.save_inspection(number, moment, found)


def _pair_precision(instances: Tensor | None, prepared: Prepared) -> float | None:
    if instances is None or prepared.candidates is None or prepared.positive is None:
        return None
    anchors = torch.arange(len(prepared.candidates))
    return mean_precision(instances, anchors, prepared.candidates.long(), prepared.positive)


def _measure(run: Run, descriptors: Tensor) -> dict[str, Any]:
    """mAP and R@1 of descriptors (N, D) over the images whose instance is known; None without labels.

    In a large collection some of them are queries, the same in every measurement, and all of them are ranked.
    """
    if run.instances is None:
        return {"map": None}
    known = (run.instances >= 0).nonzero()[:, 0].tolist()
    paths = tuple(run.images.paths[i] for i in known)
    names = tuple(str(int(run.instances[i])) for i in known)
    labels = Labels(run.images.root, paths, names)
    # An image that is gone by now is no reason to stop: labels only measure here.
    asked = SAMPLED_QUERIES if len(known) > LARGE else 0
    found = evaluate_labels(descriptors[known].float(), labels, allow_missing=True, most_queries=asked)
    sampled = {"map_queries": len(found.queries)} if asked else {}
    return {"map": found.map, "recall_at_1": found.recall(1), **sampled}


def _count_groups(prepared: Prepared) -> dict[str, int]:
    """How many groups of images are connected by mutual positives, and how many images they hold."""
    if prepared.candidates is None or prepared.positive is None or len(prepared.positive) > _MOST_GROUPED:
        return {}
    count = len(prepared.positive)
    rows, places = prepared.positive.nonzero(as_tuple=True)
    columns = prepared.candidates[rows, places].long()
    ones = np.ones(len(rows), dtype=np.int8)
    graph = sparse.coo_array((ones, (rows.numpy(), columns.numpy())), (count, count)).tocsr()
    mutual = graph.minimum(graph.T)
    sizes = np.bincount(connected_components(mutual, directed=False)[1])
    return {"groups": int((sizes > 1).sum()), "grouped": int(sizes[sizes > 1].sum())}

"""The log of the steps of a round: means of their numbers, and precision where labels are given."""

from collections.abc import Mapping

import torch
from torch import Tensor

from insclr.methods.batch import Batch
from insclr.methods.pairs import Pairs
from insclr.mining.precision import mean_precision
from insclr.ranks import Ranks
from insclr.tracking import Tracker

_LOG_EVERY = 10  # steps


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

"""The pairs that earlier rounds of a run mined, in one file a round.

Networks that have learned wrong pairs mine more of them. A pair that a network mined before it learned them is more
often right (compare consensus over rounds, Zhang et al. 2021).
"""

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from insclr.files import whole_file
from insclr.mining.expand import compact

_BLOCK_ROWS = 8192


class PairHistory:
    """What the rounds before round `number` mined; `folder` is the run's."""

    def __init__(self, folder: Path, number: int) -> None:
        self._file = folder / f"mined-{number}.safetensors"
        self._earlier = [folder / f"mined-{one}.safetensors" for one in range(1, number)]

    def confirm(self, ids: Tensor, positive: Tensor, least: float) -> Tensor:
        """Which `positive` candidates (N, P) of `ids` (N, P) at least this share of the earlier rounds mined too."""
        mined = [safetensors.torch.load_file(file)["ids"] for file in self._earlier if file.exists()]
        if not mined:
            return positive
        confirmed = torch.zeros_like(positive)
        for rows in torch.arange(len(ids)).split(_BLOCK_ROWS):
            candidates = ids[rows].long()
            columns, real = compact(positive[rows])  # (B, most positives)
            chosen = candidates.gather(1, columns)
            times = sum((chosen[:, :, None] == one[rows][:, None, :]).any(2).int() for one in mined)
            again = real & (times >= least * len(mined))
            confirmed[rows] = torch.zeros_like(confirmed[rows]).scatter_(1, columns, again)
        return confirmed

    def add(self, ids: Tensor, positive: Tensor) -> None:
        """Keep what this round mined, confirmed or not."""
        most = int(positive.sum(1).max())
        mined = torch.full((len(ids), most), -1, dtype=torch.int32)
        for rows in torch.arange(len(ids)).split(_BLOCK_ROWS):
            columns, real = compact(positive[rows])
            chosen = ids[rows].long().gather(1, columns).masked_fill(~real, -1)
            mined[rows, : columns.shape[1]] = chosen.int()
        with whole_file(self._file) as scratch:
            safetensors.torch.save_file({"ids": mined}, scratch)

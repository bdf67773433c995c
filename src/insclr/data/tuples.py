"""Training tuples: a random anchor with its N_b top-ranked neighbours (paper, Setup for training samples)."""

import numpy as np
import torch
from torch import Tensor

from insclr.errors import UserError


class TupleSampler:
    """Batches of T tuples as image ids (T, 1 + N_b), without end; every image is an anchor once an epoch.

    Batch n depends on the seed and n alone, so a resumed run or a worker that prefetches needs no replay.
    An epoch that ends inside a batch goes on with the next one's first anchors.
    """

    def __init__(
        self, pool_ids: Tensor, tuples: int, neighbours: int, seed: int, mined: Tensor | None = None
    ) -> None:
        """`mined` (N, P) marks positives of the pool: members are drawn from them, then from the top-ranked."""
        images, pool_size = pool_ids.shape
        if not 1 <= tuples <= images:
            raise UserError(
                f"A batch of {tuples} tuples cannot be drawn from {images} images. "
                f"Set the number of tuples between 1 and {images}."
            )
        if not 0 <= neighbours < pool_size:
            raise UserError(
                f"A tuple of {neighbours} neighbours does not fit a candidate pool of {pool_size}: "
                f"set the neighbours to at most {pool_size - 1}, or enlarge the pool."
            )
        # Copied: a view would keep the whole pool alive in every worker.
        self._neighbours = pool_ids[:, :neighbours].clone()  # (N, N_b)
        self._pool_ids = pool_ids if mined is not None else None
        self._mined = mined
        self._tuples = tuples
        self._seed = seed
        self._order: dict[int, Tensor] = {}  # the anchors of the latest epochs

    def step(self, n: int) -> Tensor:
        """Batch number n, counted from 0, as int64 ids (T, 1 + N_b); the anchor comes first."""
        images = len(self._neighbours)
        epoch, place = divmod(n * self._tuples, images)
        anchors = self._anchors(epoch)[place : place + self._tuples]
        if len(anchors) < self._tuples:
            anchors = torch.cat([anchors, self._anchors(epoch + 1)[: self._tuples - len(anchors)]])
        return torch.cat([anchors[:, None], self._members(anchors, n)], dim=1)

    def _members(self, anchors: Tensor, n: int) -> Tensor:
        if self._mined is None or self._pool_ids is None:
            return self._neighbours[anchors].long()
        # Random order of the mined ones, then the others by rank.
        mined = self._mined[anchors]  # (T, P)
        order = torch.rand(mined.shape, generator=_generator(self._seed, n, 1)) - 1
        rank = torch.arange(mined.shape[1], dtype=order.dtype).expand_as(order)
        columns = torch.where(mined, order, rank).argsort(dim=1)[:, : self._neighbours.shape[1]]
        return self._pool_ids[anchors].gather(1, columns).long()

    def _anchors(self, epoch: int) -> Tensor:
        if epoch not in self._order:
            self._order = {known: order for known, order in self._order.items() if abs(known - epoch) == 1}
            self._order[epoch] = torch.randperm(
                len(self._neighbours), generator=_generator(self._seed, epoch)
            )
        return self._order[epoch]


def _generator(*numbers: int) -> torch.Generator:
    mixed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed))

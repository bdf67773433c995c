"""The source that trains the late layers and the FC on cached maps, at a small part of the cost of all layers."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from insclr.methods.batch import Batch
from insclr.methods.method import Method
from insclr.model.late_layers import LateLayers
from insclr.ranks import Ranks
from insclr.training.ema_teacher import EmaTeacher
from insclr.training.sources import draw_views, gather_batch
from insclr.training.synced_batch_norm import synced_batch_norm


class Maps(NamedTuple):
    """Flattened maps (..., N, C * height * width), and the late layers for maps of this size."""

    layers: LateLayers
    maps: Tensor

    def describe(self, ids: Tensor) -> Tensor:
        """Descriptors (T, M, D) of the images (T, M) in eval mode, without gradient."""
        return self.layers.describe(self.maps[ids.flatten()]).view(*ids.shape, -1)


class MapSource:
    """Maps of the plain view and of a few augmented views per image, through the late layers.

    Ranks share the tuples of a batch; what is drawn at random does not depend on their number.
    """

    averages = False

    def __init__(
        self,
        method: Method,
        plain: Maps,
        views: Maps,
        scales: Sequence[Maps] = (),
        *,
        seed: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.network = plain.layers.network
        self.ranks = ranks or Ranks()
        self.method = method
        self.plain = plain
        self.views = views  # of maps (V, N, C * height * width)
        self.scales = scales
        self.seed = seed
        self.teacher: EmaTeacher | None = None

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of the steps first ... last - 1."""
        needs, layers = self.method.needs, self.views.layers
        teacher = None
        if self.teacher is not None:
            teacher = LateLayers(self.teacher.network, layers.side, layers.floats)
        with synced_batch_norm(self.network, self.ranks):
            for step in range(first, last):
                drawn = self.method.sampler.step(step)
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
                view = draw_views(len(self.views.maps), needs.augmented, drawn, generator)
                own = self.ranks.share(len(drawn))
                ids, view = drawn[own.start : own.stop], view[:, own.start : own.stop]  # (T, M), (V, T, M)
                # Decisions are made on plain views in eval mode, as in the paper.
                plain = self.plain.describe(ids) if needs.plain else None
                scales = tuple(one.describe(ids) for one in self.scales)
                maps = self.views.maps[view.flatten(), ids.expand_as(view).reshape(-1)]
                teacher_views = None if teacher is None else teacher.describe(maps).view(*view.shape, -1)
                self.network.train()
                augmented = self.network.head(layers.pool_features(maps)).view(*view.shape, -1)
                batch = Batch(ids.to(self.network.device), augmented, plain, scales, teacher=teacher_views)
                yield gather_batch(batch, self.ranks, len(drawn))

    def pool_features(self) -> Tensor:
        """Pooled features (N, C) of the plain views, through the late layers as they are now."""
        return self.plain.layers.all_pooled(self.plain.maps)

"""Features from maps computed once: the late layers and the FC learn, most of a network at little of its cost."""

from collections.abc import Generator

import torch
from torch import Tensor

from insclr.methods.batch import Batch
from insclr.methods.method import Method
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks
from insclr.training.cpu import computed_in
from insclr.training.ema_teacher import EmaTeacher
from insclr.training.sources import draw_views, gather_batch
from insclr.training.synced_batch_norm import synced_batch_norm

_BLOCK_MAPS = 64


class LateLayers:
    """The late layers and the pooling of a network, on flattened maps of images of one size.

    `floats` is the type of the numbers that the layers compute in, None single precision.
    """

    def __init__(self, network: DescriptorNetwork, side: int, floats: torch.dtype | None = None) -> None:
        self.network = network
        self.floats = floats
        blank = torch.zeros(1, 3, side, side, dtype=torch.uint8, device=network.device)
        with torch.no_grad():
            self.shape = network.backbone.early(blank).shape[1:]  # (C, height, width)

    def pooled(self, maps: Tensor) -> Tensor:
        """Pooled features (B, C) of flattened maps."""
        network = self.network
        maps = maps.to(network.device).float().view(-1, *self.shape)
        with computed_in(self.floats, network.device):
            late = network.backbone.late(maps)
        return network.pool(late.single())

    @torch.no_grad()
    def all_pooled(self, maps: Tensor, room: Tensor | None = None) -> Tensor:
        """Pooled features (N, C) of all of them, in eval mode and half precision, on the CPU; in `room` if given."""
        self.network.eval()
        if room is None:
            room = torch.empty(len(maps), self.network.backbone.channels, dtype=torch.float16)
        for rows in torch.arange(len(maps)).split(_BLOCK_MAPS):
            room[rows] = self.pooled(maps[rows]).half().cpu()
        return room


class MapSource:
    """Maps of the plain view and of a few augmented views per image, through the late layers.

    Ranks share the tuples of a batch; what is drawn at random does not depend on their number.
    """

    averages = False

    def __init__(
        self,
        network: DescriptorNetwork,
        method: Method,
        plain: Tensor,
        views: Tensor,
        scales: tuple[tuple[int, Tensor], ...] = (),
        *,
        plain_size: int,
        augmented_size: int,
        seed: int,
        ranks: Ranks | None = None,
        floats: torch.dtype | None = None,
    ) -> None:
        self.network = network
        self.ranks = ranks or Ranks()
        self.method = method
        self.plain = plain  # (N, C * height * width)
        self.views = views  # (V, N, C * height * width)
        self.scales = [(LateLayers(network, side, floats), maps) for side, maps in scales]
        self.seed = seed
        self.floats = floats
        self.teacher: EmaTeacher | None = None
        self.augmented_size = augmented_size
        self.plain_layers = LateLayers(network, plain_size, floats)
        self.view_layers = LateLayers(network, augmented_size, floats)

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of the steps first ... last - 1."""
        needs, teacher = self.method.needs, self.teacher
        teacher_layers = (
            None if teacher is None else LateLayers(teacher.network, self.augmented_size, self.floats)
        )
        with synced_batch_norm(self.network, self.ranks):
            for step in range(first, last):
                drawn = self.method.sampler.step(step)
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
                view = draw_views(len(self.views), needs.augmented, drawn, generator)
                own = self.ranks.share(len(drawn))
                ids, view = drawn[own.start : own.stop], view[:, own.start : own.stop]  # (T, M), (V, T, M)
                # Decisions are made on plain views in eval mode, as in the paper.
                plain = self._constant(self.plain_layers, self.plain, ids) if needs.plain else None
                scales = tuple(self._constant(layers, maps, ids) for layers, maps in self.scales)
                maps = self.views[view.flatten(), ids.expand_as(view).reshape(-1)]
                teacher_views = (
                    None if teacher_layers is None else _describe(teacher_layers, maps).view(*view.shape, -1)
                )
                self.network.train()
                augmented = self.network.head(self.view_layers.pooled(maps)).view(*view.shape, -1)
                batch = Batch(ids.to(self.network.device), augmented, plain, scales, teacher=teacher_views)
                yield gather_batch(batch, self.ranks, len(drawn))

    def pooled(self) -> Tensor:
        """Pooled features (N, C) of the plain views, through the late layers as they are now."""
        return self.plain_layers.all_pooled(self.plain)

    def _constant(self, layers: LateLayers, maps: Tensor, ids: Tensor) -> Tensor:
        return _describe(layers, maps[ids.flatten()]).view(*ids.shape, -1)


@torch.no_grad()
def _describe(layers: LateLayers, maps: Tensor) -> Tensor:
    """Descriptors (B, D) of flattened maps in eval mode, without gradient."""
    layers.network.eval()
    return layers.network.head(layers.pooled(maps))

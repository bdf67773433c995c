"""Feature sources: where the descriptors of a step come from."""

import warnings
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from insclr.data.loader import Collection, view_batches
from insclr.describe.collection_features import plain_features
from insclr.methods.method import Batch, Method
from insclr.model.device import computed_in, short_floats
from insclr.model.network import DescriptorNetwork, LateLayers
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.training.optimizer import EmaTeacher, synced_batch_norm
from insclr.training.state import view_spec


class Source(Protocol):
    """Gives the batch of every step, in order."""

    teacher: EmaTeacher | None  # describes the augmented views too, where the method needs it
    averages: bool  # whether the backward pass averages the network's gradients over ranks by itself

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of the steps first ... last - 1."""

    def pool_features(self) -> Tensor:
        """Pooled features (N, C) of the plain view of every image, as the network sees it now."""


def gather_batch(batch: Batch, ranks: Ranks, tuples: int) -> Batch:
    """This rank's tuples and, where there are others, the whole batch of so many tuples around them."""
    if ranks.alone:
        return batch

    def gather(part: Tensor) -> Tensor:
        return ranks.gather(part, tuples)

    views = torch.stack([gather(view) for view in batch.views])
    plain = None if batch.plain is None else gather(batch.plain)
    teacher = None if batch.teacher is None else torch.stack([gather(view) for view in batch.teacher])
    whole = Batch(gather(batch.ids), views, plain, teacher=teacher)
    return replace(batch, whole=whole, first_tuple=ranks.share(tuples).start)


def draw_views(cached: int, wanted: int, ids: Tensor, generator: torch.Generator) -> Tensor:
    """Which of the cached views of each image (T, M) a step sees: (wanted, T, M), all different."""
    if wanted == 1:
        return torch.randint(cached, (1, *ids.shape), generator=generator)
    return torch.rand(cached, *ids.shape, generator=generator).argsort(dim=0)[:wanted]


class PooledSource:
    """The FC on pooled features of the plain view and of a few augmented views per image."""

    averages = False

    def __init__(
        self,
        network: DescriptorNetwork,
        method: Method,
        plain: Tensor,
        views: Tensor,
        scales: tuple[Tensor, ...] = (),
        *,
        seed: int,
    ) -> None:
        self.network = network
        self.method = method
        self.plain = plain  # (N, C)
        self.views = views  # (V, N, C)
        self.scales = scales  # (N, C) each, of plain views at the method's scales
        self.seed = seed
        self.teacher: EmaTeacher | None = None

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of the steps first ... last - 1."""
        needs = self.method.needs
        for step in range(first, last):
            ids = self.method.sampler.step(step)  # (T, M)
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            view = draw_views(len(self.views), needs.augmented, ids, generator)
            views, teacher = self.views[view, ids], self.teacher
            yield Batch(
                ids.to(self.network.device),
                self.network.head(views.float().to(self.network.device)),
                plain=_constant(self.network, self.plain[ids]) if needs.plain else None,
                scales=tuple(_constant(self.network, scale[ids]) for scale in self.scales),
                teacher=None if teacher is None else _constant(teacher.network, views),
            )

    def pool_features(self) -> Tensor:
        """Pooled features (N, C) of the plain views: they stay what they were."""
        return self.plain


@torch.no_grad()
def _constant(network: DescriptorNetwork, pooled: Tensor) -> Tensor:
    """Descriptors without gradient."""
    return network.head(pooled.float().to(network.device))


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


class ImageSource:
    """Augmented and plain views of every image of the batch, through the network; ranks share the tuples."""

    averages = True

    def __init__(
        self,
        network: DescriptorNetwork,
        method: Method,
        collection: Collection,
        recipe: RoundRecipe,
        *,
        seed: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.network = network
        self.method = method
        self.collection = collection
        self.recipe = recipe
        self.seed = seed
        self.ranks = ranks or Ranks()
        self.teacher: EmaTeacher | None = None
        self._averaging: nn.Module | None = None  # the network, for several ranks

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]:
        """The batches of the steps first ... last - 1."""
        ranks, needs, share = self.ranks, self.method.needs, self.ranks.share(self.recipe.tuples)
        slots = self._ids(first).shape[1]
        batches = view_batches(
            self.collection,
            (self._ids(step).flatten().tolist() for step in range(first, last)),
            view_spec(self.recipe, needs.augmented, plain=needs.plain or bool(needs.scales)),
            seed=self.seed,
            first_batch=first,
            first_position=share.start * slots,
        )
        with synced_batch_norm(self.network, ranks):
            trained = self._wrap_network()
            for step, seen in enumerate(batches, first):
                assert seen.augmented is not None
                ids = seen.ids.view(len(share), slots)
                plain, scales = self._plain(seen.plain, ids)
                self.network.train()
                # All views in one pass: averaging over ranks takes one forward for each backward.
                augmented = self._describe(trained, seen.augmented.flatten(0, 1))
                replaced = ids != self._ids(step)
                yield gather_batch(
                    Batch(
                        ids.to(self.network.device),
                        augmented.view(len(seen.augmented), *ids.shape, -1),
                        plain,
                        scales,
                        replaced.to(self.network.device) if replaced.any() else None,
                        teacher=self._teach(seen.augmented, ids),
                    ),
                    ranks,
                    self.recipe.tuples,
                )

    def pool_features(self) -> Tensor:
        """Pooled features (N, C) of the plain view of every image, as the network sees it now; ranks share them."""
        own = torch.arange(len(self.collection.images)).tensor_split(self.ranks.world)[self.ranks.rank]
        ids = range(int(own[0]), int(own[-1]) + 1)
        made = plain_features(self.network, self.collection, ids, self.recipe.plain_size)
        return torch.cat(self.ranks.collect(made))

    def _wrap_network(self) -> nn.Module:
        """The network; of several ranks, one whose gradients are averaged as soon as the backward pass has them.

        Buffers need no copying: batch-norm is frozen or synced. A static graph allows layers without gradient.
        """
        if self.ranks.alone:
            return self.network
        if self._averaging is None:
            # Depthwise filters come channels-last from the backward pass; copying these few numbers costs nothing.
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            self._averaging = DistributedDataParallel(
                self.network, broadcast_buffers=False, static_graph=True
            )
        return self._averaging

    def _ids(self, step: int) -> Tensor:
        """The images (T, M) that this rank should see."""
        share = self.ranks.share(self.recipe.tuples)
        return self.method.sampler.step(step)[share.start : share.stop]

    @torch.no_grad()
    def _plain(self, pixels: Tensor | None, ids: Tensor) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Descriptors (T, M, D) of the plain views in eval mode, and of the scales that the method asks for."""
        if pixels is None:
            return None, ()
        self.network.eval()
        needs = self.method.needs
        plain = self._describe(self.network, pixels).view(*ids.shape, -1) if needs.plain else None
        scales = (self._describe(self.network, self._resize(pixels, scale)) for scale in needs.scales)
        return plain, tuple(one.view(*ids.shape, -1) for one in scales)

    @torch.no_grad()
    def _teach(self, pixels: Tensor, ids: Tensor) -> Tensor | None:
        """Descriptors (V, T, M, D) of the augmented views by the EMA teacher."""
        if self.teacher is None:
            return None
        return self._describe(self.teacher.network, pixels.flatten(0, 1)).view(len(pixels), *ids.shape, -1)

    def _resize(self, plain: Tensor, scale: float) -> Tensor:
        side = round(self.recipe.plain_size * scale)
        resized = torch.nn.functional.interpolate(plain.float(), (side, side), mode="bicubic", antialias=True)
        return resized.clamp(0, 255)

    def _describe(self, network: nn.Module, pixels: Tensor) -> Tensor:
        # Through all layers, backward in bf16 is slower than in single precision on a CPU: only where asked for.
        precision = "fp32" if self.recipe.precision == "auto" else self.recipe.precision
        device = self.network.device
        with computed_in(short_floats(precision, device), device):
            descriptors: Tensor = network(pixels.to(device, non_blocking=True))
        return descriptors.float()

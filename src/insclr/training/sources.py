"""Where an iteration's features come from: images through the network, cached maps, or cached pooled features."""

import warnings
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from insclr.data.cache import DecodedCache
from insclr.data.images import ImageList
from insclr.data.loader import ViewSpec, view_batches
from insclr.data.skipped import Skipped
from insclr.data.tuples import TupleSampler
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.training.step import Batch
from insclr.training.synced_batch_norm import synced_batch_norm

_BLOCK_ROWS = 8192
_BLOCK_MAPS = 64
_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Source(Protocol):
    """Gives the batch of every step, in order."""

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps first ... last - 1."""


def view_spec(recipe: RoundRecipe) -> ViewSpec:
    """The views a round on images needs: one augmented and, where every step decides anew, one plain."""
    return ViewSpec(
        plain_size=recipe.plain_size,
        augmented_size=recipe.augmented_size,
        plain=recipe.mining.similarity == "cosine",
        augmented=1,
    )


class ImageSource:
    """Two views of every image from one decode, both through the network (the paper's step 1)."""

    def __init__(
        self,
        network: DescriptorNetwork,
        images: ImageList,
        sampler: TupleSampler,
        recipe: RoundRecipe,
        *,
        seed: int,
        workers: int,
        skipped: Skipped,
        cache: DecodedCache | None = None,
        ranks: Ranks | None = None,
        announce: Callable[[Tensor], None] = lambda _: None,
    ) -> None:
        self.network = network
        self.images = images
        self.sampler = sampler
        self.recipe = recipe
        self.seed = seed
        self.workers = workers
        self.skipped = skipped
        self.cache = cache
        self.ranks = ranks or Ranks()
        self.announce = announce  # is told the tuples (T, M) before the network is at work on them
        self.device = next(network.parameters()).device

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps first ... last - 1."""
        recipe, ranks = self.recipe, self.ranks
        share = ranks.share(recipe.tuples)  # this rank's tuples
        shape = (len(share), 1 + recipe.neighbours)
        wanted = (self._ids(step).flatten().tolist() for step in range(first, last))
        batches = view_batches(
            self.images,
            wanted,
            view_spec(recipe),
            seed=self.seed,
            workers=self.workers,
            skipped=self.skipped,
            cache=self.cache,
            first_batch=first,
            first_position=share.start * shape[1],
        )
        with synced_batch_norm(self.network, ranks):
            trained = self.network if ranks.alone else _averaging(self.network)
            for step, seen in enumerate(batches, first):
                assert seen.augmented is not None
                ids = seen.ids.view(shape)
                self.announce(ids)
                described, scales = self._plain(seen.plain)
                self.network.train()
                augmented = self._describe(trained, seen.augmented[0].to(self.device, non_blocking=True))
                described = augmented.detach() if described is None else described
                replaced = ids != self._ids(step)
                yield self._batch(
                    ids.to(self.device),
                    described.view(*shape, -1),
                    augmented.view(*shape, -1),
                    (described.view(*shape, -1), *(one.view(*shape, -1) for one in scales)) if scales else (),
                    replaced.to(self.device) if replaced.any() else None,
                )

    @torch.no_grad()
    def _plain(self, pixels: Tensor | None) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Features of the plain views, in eval mode, and of further scales of them."""
        if pixels is None:
            return None, ()
        pixels = pixels.to(self.device, non_blocking=True)
        self.network.eval()
        scales = tuple(self._describe(self.network, self._scaled(pixels, s)) for s in self._extra_scales())
        return self._describe(self.network, pixels), scales

    def _ids(self, step: int) -> Tensor:
        """The images (T, M) that this rank should see."""
        share = self.ranks.share(self.recipe.tuples)
        return self.sampler.step(step)[share.start : share.stop]

    def _batch(
        self,
        ids: Tensor,
        plain: Tensor,
        augmented: Tensor,
        scales: tuple[Tensor, ...],
        replaced: Tensor | None,
    ) -> Batch:
        """This rank's tuples and, where there are others, the whole batch around them."""
        if self.ranks.alone:
            return Batch(ids, plain, augmented, scales, replaced)
        tuples, first = self.recipe.tuples, self.ranks.share(self.recipe.tuples).start
        everyone = [self.ranks.gather(part, tuples) for part in (ids, plain, augmented)]
        whole = Batch(everyone[0], everyone[1], everyone[2])
        return Batch(ids, plain, augmented, scales, replaced, whole, first)

    def _describe(self, network: nn.Module, pixels: Tensor) -> Tensor:
        dtype = _PRECISION.get(self.recipe.precision)
        with torch.autocast(self.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            descriptors: Tensor = network(pixels)
        return descriptors.float()

    def _extra_scales(self) -> tuple[float, ...]:
        if self.recipe.mining.strategy != "multiscale":
            return ()
        return tuple(scale for scale in self.recipe.mining.scales if scale != 1.0)

    def _scaled(self, plain: Tensor, scale: float) -> Tensor:
        side = round(self.recipe.plain_size * scale)
        resized = torch.nn.functional.interpolate(plain.float(), (side, side), mode="bicubic", antialias=True)
        return resized.clamp(0, 255)


def _averaging(network: DescriptorNetwork) -> nn.Module:
    """The network with gradients that are averaged over ranks as soon as the backward pass has them.

    Buffers need no copying: batch-norm is frozen or synced. A static graph allows layers without gradient.
    """
    # Depthwise filters come channels-last from the backward pass; copying these few numbers costs nothing.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    return DistributedDataParallel(network, broadcast_buffers=False, static_graph=True)


class CachedSource:
    """The FC alone, on pooled features computed once: plain and a few augmented views per image."""

    def __init__(
        self, network: DescriptorNetwork, plain: Tensor, views: Tensor, sampler: TupleSampler, *, seed: int
    ) -> None:
        self.network = network
        self.plain = plain  # (N, C)
        self.views = views  # (V, N, C)
        self.sampler = sampler
        self.seed = seed
        self.device = next(network.parameters()).device

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps first ... last - 1."""
        for step in range(first, last):
            ids = self.sampler.step(step)  # (T, M)
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            view = torch.randint(len(self.views), ids.shape, generator=generator)
            with torch.no_grad():
                plain = self.network.embed(self.plain[ids].float().to(self.device))
            augmented = self.network.embed(self.views[view, ids].float().to(self.device))
            yield Batch(ids.to(self.device), plain, augmented, (plain,))

    @torch.no_grad()
    def descriptors(self, generator: torch.Generator) -> Iterator[tuple[int, Tensor, Tensor]]:
        """A whole fresh bank in blocks: (first row, plain descriptors, those of a random augmented view)."""
        view = torch.randint(len(self.views), (len(self.plain),), generator=generator)
        for rows in torch.arange(len(self.plain)).split(_BLOCK_ROWS):
            plain = self.network.embed(self.plain[rows].float().to(self.device))
            augmented = self.network.embed(self.views[view[rows], rows].float().to(self.device))
            yield int(rows[0]), plain.cpu(), augmented.cpu()


class LateSource:
    """The late layers and the FC, on maps computed once: most of a network's weights, little of its cost."""

    def __init__(
        self,
        network: DescriptorNetwork,
        plain: Tensor,
        views: Tensor,
        sampler: TupleSampler | None,
        *,
        side: int,
        seed: int,
    ) -> None:
        self.network = network
        self.plain = plain  # (N, C * height * width)
        self.views = views  # (V, N, C * height * width)
        self.sampler = sampler
        self.seed = seed
        self.device = next(network.parameters()).device
        blank = torch.zeros(1, 3, side, side, dtype=torch.uint8, device=self.device)
        with torch.no_grad():
            self.shape = network.backbone.early(blank).shape[1:]  # (C, height, width)

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps first ... last - 1."""
        assert self.sampler is not None
        for step in range(first, last):
            ids = self.sampler.step(step)  # (T, M)
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            view = torch.randint(len(self.views), ids.shape, generator=generator)
            self.network.train()
            pooled = self.pooled(self.views[view.flatten(), ids.flatten()])
            augmented = self.network.embed(pooled).view(*ids.shape, -1)
            yield Batch(ids.to(self.device), augmented.detach(), augmented)

    def pooled(self, maps: Tensor) -> Tensor:
        """Unit pooled features (B, C) of flattened maps."""
        network = self.network
        return network.pool(network.backbone.late(maps.to(self.device).float().view(-1, *self.shape)))

    @torch.no_grad()
    def all_pooled(self, maps: Tensor) -> Tensor:
        """Pooled features (N, C) of all of them, in eval mode and half precision, on the CPU."""
        self.network.eval()
        return torch.cat([self.pooled(block).half().cpu() for block in maps.split(_BLOCK_MAPS)])

    def all_views(self, maps: Tensor) -> Tensor:
        """The same (V, N, C) of several views."""
        return torch.stack([self.all_pooled(view) for view in maps])

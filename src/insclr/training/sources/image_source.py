"""The source that sends images through the whole network: all views of a step come from one decode (step 1)."""

import warnings
from collections.abc import Generator

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from insclr.data.loader import Collection, view_batches
from insclr.describe.collection_features import plain_features
from insclr.methods.batch import Batch
from insclr.methods.method import Method
from insclr.model.device import computed_in, short_floats
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.training.ema_teacher import EmaTeacher
from insclr.training.round_features import view_spec
from insclr.training.sources import gather_batch
from insclr.training.synced_batch_norm import synced_batch_norm


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

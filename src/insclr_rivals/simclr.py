"""SimCLR (Chen et al. 2020, arXiv 2002.05709): two views of an image attract, all others of the batch repel."""

from typing import ClassVar, Literal

import torch
from torch import nn

from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.recipe import MethodSettings, setting
from insclr_rivals.optional_packages import lightly, use_seed
from insclr_rivals.views import image_sampler, two_views, view_similarities


class SimclrSettings(MethodSettings):
    """SimCLR (Chen et al. 2020): two views of an image attract, all other images of the batch repel."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["simclr"] = setting(
        "simclr", "two views of an image attract, the other images of the batch repel"
    )
    temperature: float = setting(0.1, "of the softmax over the batch", gt=0)
    hidden: int = setting(2048, "width of the projection head, which is thrown away after training", ge=1)
    projected: int = setting(128, "length of its output", ge=1)


class Simclr(Method):
    """NT-Xent on a projection of the descriptor."""

    settings_class = SimclrSettings
    needs = Needs(augmented=2)
    heads: nn.ModuleDict

    def __init__(self, settings: SimclrSettings) -> None:
        self.settings = settings
        self._contrast = lightly("loss").NTXentLoss(temperature=settings.temperature)

    def prepare(self, start: RoundStart) -> Prepared:
        """Make the projection head."""
        settings = self.settings
        self.sampler = image_sampler(start)
        with use_seed(start.seed):
            head = lightly("models.modules.heads").SimCLRProjectionHead(
                start.network.dim, settings.hidden, settings.projected
            )
        self.heads = nn.ModuleDict({"projection": head}).to(start.device)
        return Prepared({"temperature": settings.temperature, "batch": start.tuples})

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """Softmax cross-entropy of finding the other view among all views of the batch."""
        # Both views at once, as published: batch-norm in the head then has no way to tell them apart.
        projected = self.heads["projection"](torch.cat(two_views(batch.global_batch.views)))
        return OwnLoss(self._contrast(*projected.chunk(2)), view_similarities(batch))

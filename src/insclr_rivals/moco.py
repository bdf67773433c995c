"""MoCo v2 (Chen et al. 2020, arXiv 2003.04297): a view against the other view and a queue of an EMA teacher."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.ranks import Ranks
from insclr.recipe import MethodSettings, setting
from insclr_rivals.optional_packages import lightly, use_seed
from insclr_rivals.views import (
    create_teacher,
    image_sampler,
    queue_length,
    two_views,
    update_teacher,
    view_similarities,
)

if TYPE_CHECKING:
    from insclr_rivals.pcl import PclSettings


class MocoSettings(MethodSettings):
    """The published numbers are the defaults."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["moco-v2"] = setting(
        "moco-v2", "two views of an image attract, a queue of earlier images repels"
    )
    temperature: float = setting(0.2, "of the softmax over the queue", gt=0)
    momentum: float = setting(0.999, "decay of the EMA teacher", ge=0, lt=1)
    queue: int = setting(65536, "images in the queue; at most half of the collection", ge=1)
    hidden: int = setting(2048, "width of the projection head, which is thrown away after training", ge=1)
    projected: int = setting(128, "length of its output", ge=1)


class Moco(Method):
    """InfoNCE on a projection of the descriptor; owns the queue of projections of the EMA teacher."""

    settings_class: ClassVar[type[MethodSettings]] = MocoSettings
    heads: nn.ModuleDict

    def __init__(self, settings: "MocoSettings | PclSettings") -> None:
        self.settings = settings
        self.needs = Needs(augmented=2, ema_decay=settings.momentum)

    def prepare(self, start: RoundStart) -> Prepared:
        """Make the projection head, its EMA teacher and the queue, which begins with random rows as published."""
        settings, queue = self.settings, queue_length(self.settings.queue, start)
        self.sampler = image_sampler(start)
        with use_seed(start.seed):
            head = lightly("models.modules.heads").MoCoProjectionHead(
                start.network.dim, settings.hidden, settings.projected
            )
            self._contrast = (
                lightly("loss")
                .NTXentLoss(settings.temperature, memory_bank_size=(queue, settings.projected))
                .to(start.device)
            )
        self.heads = nn.ModuleDict({"projection": head, "slow": create_teacher(head)}).to(start.device)
        return Prepared({"queue": queue, "temperature": settings.temperature, "momentum": settings.momentum})

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """Softmax cross-entropy of finding the other view among the queue; then the queue takes in the new keys."""
        return OwnLoss(self._info_nce(self._queries(batch), batch), view_similarities(batch))

    def _queries(self, batch: Batch) -> Tensor:
        """Projections (T, P) of the first views, with gradient."""
        projected: Tensor = self.heads["projection"](two_views(batch.global_batch.views)[0])
        return projected

    def _info_nce(self, queries: Tensor, batch: Batch) -> Tensor:
        teacher = batch.global_batch.teacher
        assert teacher is not None
        # The EMA teacher of the network was updated after the last step; that of the head is updated here.
        update_teacher(self.heads["slow"], self.heads["projection"], self.settings.momentum)
        with torch.no_grad():
            keys = self.heads["slow"](two_views(teacher)[1])
        loss: Tensor = self._contrast(queries, keys)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Both heads and the queue."""
        bank = self._contrast.memory_bank
        return super().state_dict() | {"queue": bank.bank, "place": bank.bank_ptr}

    def load_state_dict(self, state: Mapping[str, Any], copies: Mapping[str, Path], ranks: Ranks) -> None:
        """Go on with the queue."""
        super().load_state_dict(state, copies, ranks)
        self._contrast.memory_bank.bank.copy_(state["queue"])
        self._contrast.memory_bank.bank_ptr.copy_(state["place"])

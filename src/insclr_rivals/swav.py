"""SwAV (Caron et al. 2020, arXiv 2006.09882): predict a view's assignment to prototypes from another view."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.ranks import Ranks
from insclr.recipe import MethodSettings, setting
from insclr_rivals.clusters import cluster_count
from insclr_rivals.optional_packages import lightly, use_seed
from insclr_rivals.views import image_sampler, two_views, view_similarities


class SwavSettings(MethodSettings):
    """SwAV (Caron et al. 2020): predict a view's assignment to prototypes from another view."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["swav"] = setting("swav", "predict a view's assignment to prototypes from another view")
    temperature: float = setting(0.1, "of the softmax over prototypes", gt=0)
    images_per_prototype: float = setting(427.0, "how many prototypes there are", ge=1)
    epsilon: float = setting(0.05, "smoothness of the even assignment (Sinkhorn)", gt=0)
    queue: int = setting(3840, "earlier images that are assigned too; at most half of the collection", ge=0)
    hidden: int = setting(2048, "width of the projection head, which is thrown away after training", ge=1)
    projected: int = setting(128, "length of its output", ge=1)


class Swav(Method):
    """Even assignments (Sinkhorn) of the batch and of a queue of earlier projections, which it owns."""

    settings_class = SwavSettings
    needs = Needs(augmented=2)
    heads: nn.ModuleDict

    def __init__(self, settings: SwavSettings) -> None:
        self.settings = settings
        self._swap = lightly("loss").SwaVLoss(settings.temperature, sinkhorn_epsilon=settings.epsilon)

    def prepare(self, start: RoundStart) -> Prepared:
        """Make the projection head, the prototypes and an empty queue."""
        settings, made = self.settings, lightly("models.modules.heads")
        self.sampler = image_sampler(start)
        count = cluster_count(len(start), settings.images_per_prototype)
        first_epoch = math.ceil(len(start) / start.tuples)
        with use_seed(start.seed):
            projection = made.SwaVProjectionHead(start.network.dim, settings.hidden, settings.projected)
            prototypes = made.SwaVPrototypes(settings.projected, count, n_steps_frozen_prototypes=first_epoch)
        # Published prototypes are directions: lightly's layer has a bias beside them.
        prototypes.heads[0].register_parameter("bias", None)
        self.heads = nn.ModuleDict({"projection": projection, "prototypes": prototypes}).to(start.device)
        length = min(settings.queue, len(start) // 2)
        self._queue = torch.zeros(2, length, settings.projected, device=start.device)  # newest first
        self._queued = 0
        return Prepared({"prototypes": count, "queue": length, "temperature": settings.temperature})

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """Cross-entropy of one view's prototypes and the other view's even assignment, both ways."""
        prototypes: Any = self.heads["prototypes"]
        with torch.no_grad():
            prototypes.normalize()
        both = torch.cat(two_views(batch.global_batch.views))
        projected = normalize(self.heads["projection"](both), dim=1)  # (2 T, P)
        scores = list(prototypes(projected, step).chunk(2))
        loss = self._swap(scores, [], self._queue_scores(step))
        self._take_in(projected.detach().view(2, -1, projected.shape[1]))
        return OwnLoss(loss.squeeze(), view_similarities(batch))

    @torch.no_grad()
    def _queue_scores(self, step: int) -> list[Tensor] | None:
        """Similarities to the prototypes of the queued projections, once the queue is full."""
        length = self._queue.shape[1]
        if not length or self._queued < length:
            return None
        return [self.heads["prototypes"](view, step) for view in self._queue]

    def _take_in(self, projected: Tensor) -> None:
        """The newest projections (2, T, P) push the oldest ones out."""
        length = self._queue.shape[1]
        self._queue = torch.cat([projected, self._queue], dim=1)[:, :length]
        self._queued = min(length, self._queued + projected.shape[1])

    def state_dict(self) -> dict[str, Any]:
        """Head, prototypes and queue."""
        return super().state_dict() | {"queue": self._queue, "queued": self._queued}

    def load_state_dict(self, state: Mapping[str, Any], copies: Mapping[str, Path], ranks: Ranks) -> None:
        """Go on with the queue."""
        super().load_state_dict(state, copies, ranks)
        self._queue, self._queued = state["queue"].to(self._queue.device), state["queued"]

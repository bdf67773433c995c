"""PCL (Li et al. 2021, arXiv 2005.04966): MoCo, and k-means centres of several granularities as prototypes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from insclr.methods.method import Batch, OwnLoss, Prepared, RoundStart
from insclr.ranks import Ranks
from insclr.recipe import MethodSettings, setting
from insclr_rivals.clusters import cluster_count, concentration, k_means
from insclr_rivals.moco import Moco
from insclr_rivals.views import view_similarities


class PclSettings(MethodSettings):
    """PCL (Li et al. 2021): MoCo, and k-means centres of several granularities as further positives."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["pcl"] = setting(
        "pcl", "MoCo, and attraction to the centres of k-means at several granularities"
    )
    images_per_cluster: tuple[Annotated[float, Field(ge=1)], ...] = setting(
        (51.0, 26.0, 13.0), "how many clusters k-means makes, for each granularity", min_length=1
    )
    alpha: float = setting(10.0, "keeps the concentration of small clusters from growing too large", gt=0)
    warmup_epochs: int = setting(2, "epochs without clusters (published: 20 of 200)", ge=0)
    temperature: float = setting(
        0.2, "of the softmax over the queue; mean concentration of the clusters", gt=0
    )
    momentum: float = setting(0.999, "decay of the EMA teacher", ge=0, lt=1)
    queue: int = setting(16384, "images in the queue; at most half of the collection", ge=1)
    hidden: int = setting(2048, "width of the projection head, which is thrown away after training", ge=1)
    projected: int = setting(128, "length of its output", ge=1)


@dataclass(frozen=True)
class Prototypes:
    """The clusters of one granularity."""

    of_image: Tensor  # (N,) int64
    centres: Tensor  # (K, P) unit rows
    looseness: Tensor  # (K,) phi: the temperature of each


class Pcl(Moco):
    """InfoNCE and ProtoNCE; clusters the collection's projections every epoch."""

    settings_class = PclSettings
    settings: PclSettings

    def __init__(self, settings: PclSettings) -> None:
        super().__init__(settings)
        self._prototypes: list[Prototypes] = []

    def prepare(self, start: RoundStart) -> Prepared:
        """As MoCo; cluster at once where there is no warm-up."""
        self._start = start
        prepared = super().prepare(start)
        self.epoch_steps = math.ceil(len(start) / start.tuples)
        counts = [cluster_count(len(start), each) for each in self.settings.images_per_cluster]
        self.begin_epoch(0, start.plain, start.ranks)
        return Prepared({**prepared.criteria, "clusters": counts})

    @torch.no_grad()
    def begin_epoch(self, epoch: int, plain: Tensor, ranks: Ranks) -> Sequence[nn.Parameter]:
        """Cluster what the network and the projection head see now."""
        if epoch < self.settings.warmup_epochs:
            return ()
        descriptors = self._start.network.describe_pooled(plain)
        head = self.heads["projection"]
        parts = [head(rows.to(self._start.device)).cpu() for rows in descriptors.split(8192)]
        projected = normalize(torch.cat(parts), dim=1)
        self._prototypes = ranks.from_first(self._cluster(projected, epoch) if ranks.first else None)
        return ()

    def _cluster(self, projected: Tensor, epoch: int) -> list[Prototypes]:
        settings, made = self.settings, []
        for place, each in enumerate(settings.images_per_cluster):
            seed = self._start.seed * 1009 + epoch * 31 + place
            clusters = k_means(projected, cluster_count(len(projected), each), seed)
            looseness = concentration(projected, clusters, settings.alpha, settings.temperature)
            made.append(Prototypes(clusters.of_image, clusters.centres, looseness))
        return made

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """InfoNCE and, after the warm-up, the mean ProtoNCE over the granularities."""
        queries = self._queries(batch)
        loss, numbers = self._info_nce(queries, batch), view_similarities(batch)
        if self._prototypes:
            ids = batch.global_batch.ids[:, 0].cpu()
            parts = [proto_nce(queries, one.of_image[ids], one) for one in self._prototypes]
            numbers["prototype_loss"] = torch.stack(parts).detach().mean()
            loss = loss + torch.stack(parts).mean()
        return OwnLoss(loss, numbers)

    def state_dict(self) -> dict[str, Any]:
        """What MoCo keeps, and the prototypes of the epoch."""
        return super().state_dict() | {"prototypes": [vars(one) for one in self._prototypes]}

    def load_state_dict(self, state: Mapping[str, Any], copies: Mapping[str, Path], ranks: Ranks) -> None:
        """Go on inside an epoch with its prototypes."""
        super().load_state_dict(state, copies, ranks)
        self._prototypes = [Prototypes(**one) for one in state["prototypes"]]


def proto_nce(queries: Tensor, wanted: Tensor, prototypes: Prototypes) -> Tensor:
    """Cross-entropy of finding the prototype `wanted` (T,) of each query (T, P), each at its own temperature."""
    centres, looseness = prototypes.centres.to(queries), prototypes.looseness.to(queries)
    logits = normalize(queries, dim=1) @ centres.T / looseness  # (T, K)
    return cross_entropy(logits, wanted.to(queries.device))

"""DeepCluster (Caron et al. 2018, arXiv 1807.05520): k-means every epoch, then classify the images by cluster."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.ranks import Ranks
from insclr.recipe import MethodSettings, setting
from insclr_rivals.clusters import Clusters, cluster_count, k_means
from insclr_rivals.samplers import EvenSampler


class DeepClusterSettings(MethodSettings):
    """DeepCluster (Caron et al. 2018): k-means every epoch, then classify the images by cluster."""

    own_loss: ClassVar[bool] = True
    name: Literal["deepcluster"] = setting(
        "deepcluster", "k-means every epoch, then classify images by cluster"
    )
    images_per_cluster: float = setting(128.0, "how many clusters k-means makes", ge=1)
    temperature: float = setting(0.1, "of the softmax over clusters", gt=0)


class DeepCluster(Method):
    """A linear classifier of the descriptor, whose classes are the clusters of the epoch."""

    settings_class = DeepClusterSettings
    needs = Needs()
    heads: nn.ModuleDict

    def __init__(self, settings: DeepClusterSettings) -> None:
        self.settings = settings

    def prepare(self, start: RoundStart) -> Prepared:
        """Cluster the collection and make the classifier."""
        self._start = start
        self.epoch_steps = math.ceil(len(start) / start.tuples)
        count = cluster_count(len(start), self.settings.images_per_cluster)
        # The descriptors, whatever was trained: an untrained layer still keeps most distances.
        dim = start.network.dim
        self._classifier = nn.Linear(dim, count, bias=False)
        self.heads = nn.ModuleDict({"classifier": self._classifier}).to(start.device)
        self._cluster(0, start.plain, start.ranks)
        return Prepared({"clusters": count, "temperature": self.settings.temperature})

    def begin_epoch(self, epoch: int, plain: Tensor, ranks: Ranks) -> Sequence[nn.Parameter]:
        """Cluster anew; the classifier of the epoch before means nothing any more."""
        self._cluster(epoch, plain, ranks)
        return self.parameters()

    def _cluster(self, epoch: int, plain: Tensor, ranks: Ranks) -> None:
        weight = self._classifier.weight  # (K, D)
        descriptors = self._start.network.describe_pooled(plain)
        found: Clusters = ranks.from_first(
            k_means(descriptors, len(weight), self._start.seed + epoch) if ranks.first else None
        )
        with torch.no_grad():
            weight.copy_(found.centres / self.settings.temperature)
        self._use(found.of_image)

    def _use(self, of_image: Tensor) -> None:
        self._of_image = of_image
        self.sampler = EvenSampler(of_image, self._start.tuples, self._start.seed)

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """Cross-entropy of finding an image's cluster."""
        whole = batch.global_batch
        ids, descriptors = whole.ids.flatten(), whole.augmented.flatten(0, 1)
        logits = self._classifier(descriptors)
        wanted = self._of_image[ids.cpu()].to(logits.device)
        right = (logits.detach().argmax(1) == wanted).float().mean()
        return OwnLoss(cross_entropy(logits, wanted), {"accuracy": right})

    def state_dict(self) -> dict[str, Any]:
        """The classifier and the clusters of the epoch."""
        return super().state_dict() | {"of_image": self._of_image}

    def load_state_dict(self, state: Mapping[str, Any], copies: Mapping[str, Path], ranks: Ranks) -> None:
        """Go on inside an epoch with its clusters."""
        super().load_state_dict(state, copies, ranks)
        self._use(state["of_image"])

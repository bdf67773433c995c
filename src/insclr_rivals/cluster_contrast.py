"""Cluster Contrast (Dai et al. 2022, arXiv 2103.11568), the strongest line of unsupervised re-identification.

Every epoch: DBSCAN on k-reciprocal Jaccard distances. In every step: an image is classified among the cluster
centres, which a memory keeps and moves towards the images that are seen. Images in no cluster wait for another epoch.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from insclr.errors import UserError
from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.ranks import Ranks
from insclr.recipe import MethodSettings, setting
from insclr_rivals.clusters import dbscan, group_means, jaccard_distances
from insclr_rivals.samplers import GroupSampler

logger = logging.getLogger(__name__)


class ClusterContrastSettings(MethodSettings):
    """Cluster Contrast (Dai et al. 2022), from unsupervised re-identification."""

    own_loss: ClassVar[bool] = True
    name: Literal["cluster-contrast"] = setting(
        "cluster-contrast",
        "DBSCAN of k-reciprocal Jaccard distances every epoch, a memory of cluster centres",
    )
    k1: int = setting(30, "neighbours that must be mutual, the image itself among them", ge=2)
    k2: int = setting(6, "neighbours whose sets are averaged, the image itself among them", ge=1)
    eps: float = setting(0.6, "DBSCAN: largest Jaccard distance of neighbours", gt=0, lt=1)
    min_images: int = setting(4, "DBSCAN: images within eps that make a core image, itself among them", ge=1)
    images_per_tuple: int = setting(16, "images of one cluster in a tuple", ge=1)
    temperature: float = setting(0.05, "of the softmax over cluster centres", gt=0)
    momentum: float = setting(
        0.1, "share of itself that a centre keeps when an image of it is seen", ge=0, lt=1
    )


class ClusterContrast(Method):
    """Softmax over a memory of cluster centres; owns the clusters of the epoch and the memory."""

    settings_class = ClusterContrastSettings
    needs = Needs()

    def __init__(self, settings: ClusterContrastSettings) -> None:
        self.settings = settings

    def prepare(self, start: RoundStart) -> Prepared:
        """Cluster the collection for the first epoch."""
        self._start = start
        members = self.settings.images_per_tuple
        self.epoch_steps = math.ceil(len(start) / (start.tuples * members))
        descriptors = start.descriptors
        of_image = self._clusters(descriptors, start.ranks)
        count = int(of_image.max()) + 1
        if count < 2:
            raise UserError(_too_few(count, len(start)))
        self._use(of_image, group_means(start.network.describe_pooled(start.plain), of_image))
        share = float((of_image >= 0).float().mean())
        return Prepared({"clusters": count, "clustered": round(share, 3), "eps": self.settings.eps})

    def begin_epoch(self, epoch: int, plain: Tensor, ranks: Ranks) -> Sequence[nn.Parameter]:
        """Cluster anew; where that leaves nothing to tell apart, the clusters of before stay."""
        descriptors = self._start.network.describe_pooled(plain)
        of_image = self._clusters(descriptors, ranks)
        if int(of_image.max()) < 1:
            logger.warning(
                "epoch %d of cluster-contrast found fewer than two clusters: keeping the last ones", epoch
            )
            of_image = self._of_image
        self._use(of_image, group_means(descriptors, of_image))
        return ()

    def _clusters(self, descriptors: Tensor, ranks: Ranks) -> Tensor:
        """The cluster of every image (N,), -1 for none; found by the first rank for all."""
        return torch.from_numpy(ranks.from_first(self._run_dbscan(descriptors) if ranks.first else None))

    def _run_dbscan(self, descriptors: Tensor) -> NDArray[np.int64]:
        settings = self.settings
        rows = np.ascontiguousarray(descriptors.float().numpy())
        distances = jaccard_distances(rows, k1=settings.k1, k2=settings.k2, largest=settings.eps)
        return dbscan(distances, settings.eps, settings.min_images)

    def _use(self, of_image: Tensor, memory: Tensor) -> None:
        self._of_image = of_image
        self._memory = memory.to(self._start.device)
        tuples, members = self._start.tuples, self.settings.images_per_tuple
        self.sampler = GroupSampler(of_image, tuples, members, self._start.seed)

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """Cross-entropy of finding an image's cluster by the centres; then the centres move."""
        settings, whole = self.settings, batch.global_batch
        descriptors = whole.augmented.flatten(0, 1)  # (B, D)
        wanted = self._of_image[whole.ids.flatten().cpu()].to(descriptors.device)
        clustered = wanted >= 0  # but for stand-ins of unreadable images
        descriptors, wanted = descriptors[clustered], wanted[clustered]
        cosines = descriptors @ self._memory.T  # (B, K)
        loss = cross_entropy(cosines / settings.temperature, wanted)
        own = cosines.detach().gather(1, wanted[:, None]).mean()
        others = (cosines.detach().sum() - own * len(wanted)) / max(1, cosines.numel() - len(wanted))
        self._memory = follow(self._memory, descriptors.detach(), wanted, settings.momentum)
        return OwnLoss(loss, {"positive_similarity": own, "negative_similarity": others})

    def state_dict(self) -> dict[str, Any]:
        """The clusters of the epoch and the memory of their centres."""
        return {"of_image": self._of_image, "memory": self._memory}

    def load_state_dict(self, state: Mapping[str, Any], copies: Mapping[str, Path], ranks: Ranks) -> None:  # noqa: ARG002
        """Go on inside an epoch with its clusters."""
        self._use(state["of_image"], state["memory"])


def follow(memory: Tensor, descriptors: Tensor, clusters: Tensor, momentum: float) -> Tensor:
    """Centres (K, D) after they have seen images (B, D) of these clusters (B,), one by one, in order.

    c <- normalise(momentum * c + (1 - momentum) * image).
    """
    memory = memory.clone()
    for cluster, image in zip(clusters.tolist(), descriptors, strict=True):
        memory[cluster] = normalize(torch.lerp(image, memory[cluster], momentum), dim=0)
    return memory


def _too_few(count: int, images: int) -> str:
    """What to do about a collection that is not cut into clusters."""
    if count:
        return f"cluster-contrast puts all {images} images into one cluster: lower rounds.method.eps."
    return (
        f"cluster-contrast finds no cluster among {images} images: "
        "raise rounds.method.eps or lower rounds.method.min_images."
    )

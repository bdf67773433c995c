"""Listwise average precision (Revaud et al. 2019, arXiv 1906.07589). SUPERVISED, on purpose.

Every image of the batch is a query against the others; its average precision is made differentiable by a histogram of
similarities, in which each falls into the two nearest bins.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.recipe import MethodSettings, setting
from insclr_rivals.samplers import GroupSampler, labelled_images, require_instances


class GemApSettings(MethodSettings):
    """Listwise average precision (Revaud et al. 2019), supervised."""

    own_loss: ClassVar[bool] = True
    supervised: ClassVar[bool] = True
    name: Literal["gem-ap"] = setting(
        "gem-ap", "WITH LABELS: raise the average precision of every image of the batch"
    )
    bins: int = setting(20, "of the histogram of similarities from 1 down to 0", ge=2)
    images_per_tuple: int = setting(4, "images of one instance in a tuple", ge=2)


class GemAp(Method):
    """1 - mAP of the batch."""

    settings_class = GemApSettings
    needs = Needs(labels=True)

    def __init__(self, settings: GemApSettings) -> None:
        self.settings = settings

    def prepare(self, start: RoundStart) -> Prepared:
        """Draw several images of each instance."""
        settings, instances = self.settings, require_instances(start)
        self._instances = instances.to(start.device)
        self.sampler = GroupSampler(instances, start.tuples, settings.images_per_tuple, start.seed)
        return Prepared({"bins": settings.bins})

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """1 - the mean quantised AP of the queries that have a positive."""
        descriptors, instances = labelled_images(batch.global_batch, self._instances)
        others = ~torch.eye(len(instances), dtype=torch.bool, device=instances.device)
        same = (instances[:, None] == instances) & others
        ap = quantised_ap(descriptors @ descriptors.T, same, others, self.settings.bins)
        asked = same.any(1)
        loss = 1 - (ap * asked).sum() / asked.sum().clamp(min=1)
        return OwnLoss(loss)


def quantised_ap(similarities: Tensor, positive: Tensor, counted: Tensor, bins: int) -> Tensor:
    """Average precision (Q,) of results (Q, N) by their similarities, with gradient; 0 for a query without positives.

    Bins of equal width have their centres at 1 ... 0. A result falls into the two bins around its similarity, in
    shares that sum to one; what is below 0 falls into the last. `counted` marks results, `positive` the right ones.
    """
    centres = torch.linspace(1, 0, bins, device=similarities.device)
    width = 1 / (bins - 1)
    distance = (similarities.clamp(0, 1)[..., None] - centres).abs() / width
    share = (1 - distance).clamp(min=0) * counted[..., None]  # (Q, N, bins)
    of_all, of_right = share.sum(1), (share * positive[..., None]).sum(1)  # (Q, bins)
    precision = of_right.cumsum(1) / of_all.cumsum(1).clamp(min=1e-6)
    recall = of_right / positive.sum(1, keepdim=True).clamp(min=1)
    return (precision * recall).sum(1)

"""ArcFace (Deng et al. 2019, arXiv 1801.07698): classify instances with an angular margin. SUPERVISED, on purpose."""

import torch
from torch import nn

from insclr.data.tuples import GroupSampler
from insclr.methods.batch import Batch
from insclr.methods.extras import metric_learning, seeded
from insclr.methods.labels import labelled, require_instances
from insclr.methods.method import Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.mining.clusters import group_means
from insclr.recipe.rivals import ArcfaceSettings


class Arcface(Method):
    """Softmax over one or several centres of every labelled instance."""

    needs = Needs(labels=True)
    heads: nn.ModuleDict

    def __init__(self, settings: ArcfaceSettings) -> None:
        self.settings = settings
        self._losses = metric_learning("losses")

    def prepare(self, start: RoundStart) -> Prepared:
        """Make the centres; draw several images of each instance, as MPerClassSampler but from the step alone."""
        settings, instances = self.settings, require_instances(start)
        self._instances, count = instances.to(start.device), int(instances.max()) + 1
        self.sampler = GroupSampler(instances, start.tuples, settings.images_per_tuple, start.seed)
        options = {
            "num_classes": count,
            "embedding_size": start.network.dim,
            "margin": settings.margin,
            "scale": settings.scale,
        }
        if settings.sub_centers > 1:
            loss = self._losses.SubCenterArcFaceLoss(sub_centers=settings.sub_centers, **options)
        else:
            loss = self._losses.ArcFaceLoss(**options)
        means = group_means(start.network.describe_pooled(start.plain), instances).T  # (D, K)
        with seeded(start.seed), torch.no_grad():
            # A few hundred steps could not turn random centres: they start where the instances are. Sub-centres of
            # an instance start a little apart.
            loss.W.copy_(means.repeat_interleave(settings.sub_centers, dim=1))
            if settings.sub_centers > 1:
                loss.W.add_(0.5 * len(means) ** -0.5 * torch.randn_like(loss.W))
        self.heads = nn.ModuleDict({"centres": loss}).to(start.device)
        return Prepared({"instances": count, "margin_degrees": settings.margin, "scale": settings.scale})

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """Cross-entropy with a margin, over the labelled images of the batch."""
        descriptors, instances = labelled(batch.global_batch, self._instances)
        return OwnLoss(self.heads["centres"](descriptors, instances))

"""ArcFace (Deng et al. 2019, arXiv 1801.07698): classify instances with an angular margin. SUPERVISED, on purpose."""

from typing import ClassVar, Literal

import torch
from torch import nn

from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.recipe import MethodSettings, setting
from insclr_rivals.clusters import group_means
from insclr_rivals.optional_packages import metric_learning, use_seed
from insclr_rivals.samplers import GroupSampler, labelled_images, require_instances


class ArcfaceSettings(MethodSettings):
    """ArcFace (Deng et al. 2019), supervised: classify instances with an angular margin."""

    own_loss: ClassVar[bool] = True
    supervised: ClassVar[bool] = True
    name: Literal["arcface"] = setting("arcface", "WITH LABELS: classify instances with an angular margin")
    margin: float = setting(28.6, "in degrees", ge=0)
    scale: float = setting(64.0, "inverse temperature of the softmax over instances", gt=0)
    images_per_tuple: int = setting(4, "images of one instance in a tuple", ge=1)


class Arcface(Method):
    """Softmax over a centre of every labelled instance."""

    settings_class = ArcfaceSettings
    needs = Needs(labels=True)
    heads: nn.ModuleDict

    def __init__(self, settings: ArcfaceSettings) -> None:
        self.settings = settings

    def prepare(self, start: RoundStart) -> Prepared:
        """Make the centres; draw several images of each instance, as MPerClassSampler but from the step alone."""
        settings, instances = self.settings, require_instances(start)
        self._instances, count = instances.to(start.device), int(instances.max()) + 1
        self.sampler = GroupSampler(instances, start.tuples, settings.images_per_tuple, start.seed)
        with use_seed(start.seed), torch.no_grad():
            loss = metric_learning("losses").ArcFaceLoss(
                count, start.network.dim, margin=settings.margin, scale=settings.scale
            )
            # A few hundred steps could not turn random centres: they start where the instances are.
            loss.W.copy_(group_means(start.network.describe_pooled(start.plain), instances).T)  # (D, K)
        self.heads = nn.ModuleDict({"centres": loss}).to(start.device)
        return Prepared({"instances": count, "margin_degrees": settings.margin, "scale": settings.scale})

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """Cross-entropy with a margin, over the labelled images of the batch."""
        descriptors, instances = labelled_images(batch.global_batch, self._instances)
        return OwnLoss(self.heads["centres"](descriptors, instances))

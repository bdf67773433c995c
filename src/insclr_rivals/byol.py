"""BYOL (Grill et al. 2020, arXiv 2006.07733): predict what an EMA teacher computes for another view."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from insclr.methods.method import Batch, Method, Needs, OwnLoss, Prepared, RoundStart
from insclr.recipe import MethodSettings, setting
from insclr_rivals.optional_packages import lightly, use_seed
from insclr_rivals.views import create_teacher, image_sampler, two_views, update_teacher, view_similarities


class ByolSettings(MethodSettings):
    """The published numbers are the defaults."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["byol"] = setting(
        "byol", "predict what an EMA teacher computes for another view; nothing repels"
    )
    momentum: float = setting(0.99, "decay of the EMA teacher", ge=0, lt=1)
    hidden: int = setting(
        4096, "width of the projection and prediction heads, thrown away after training", ge=1
    )
    projected: int = setting(256, "length of their output", ge=1)


class Byol(Method):
    """Each view predicts the teacher's projection of the other view; nothing repels."""

    settings_class = ByolSettings
    heads: nn.ModuleDict

    def __init__(self, settings: ByolSettings) -> None:
        self.settings = settings
        self.needs = Needs(augmented=2, ema_decay=settings.momentum)
        self._distance = lightly("loss").NegativeCosineSimilarity()

    def prepare(self, start: RoundStart) -> Prepared:
        """Make the projection and prediction heads, and the EMA teacher of the first."""
        settings, made = self.settings, lightly("models.modules.heads")
        self.sampler = image_sampler(start)
        with use_seed(start.seed):
            projection = made.BYOLProjectionHead(start.network.dim, settings.hidden, settings.projected)
            prediction = made.BYOLPredictionHead(settings.projected, settings.hidden, settings.projected)
        heads = {"projection": projection, "prediction": prediction, "slow": create_teacher(projection)}
        self.heads = nn.ModuleDict(heads).to(start.device)
        return Prepared({"momentum": settings.momentum})

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss:  # noqa: ARG002
        """Negative cosine of prediction and target, the mean of both ways."""
        whole = batch.global_batch
        assert whole.teacher is not None
        update_teacher(self.heads["slow"], self.heads["projection"], self.settings.momentum)
        first, second = (self._predict(view) for view in two_views(whole.views))
        with torch.no_grad():
            targets = [self.heads["slow"](view) for view in two_views(whole.teacher)]
        loss = (self._distance(first, targets[1]) + self._distance(second, targets[0])) / 2
        return OwnLoss(loss, view_similarities(batch))

    def _predict(self, view: Tensor) -> Tensor:
        predicted: Tensor = self.heads["prediction"](self.heads["projection"](view))
        return predicted

"""What the image-level methods have in common: tuples of one image, described in two views of the whole batch."""

import copy

import torch
from torch import Tensor, nn

from insclr.errors import UserError
from insclr.methods.method import Batch, RoundStart
from insclr_rivals.samplers import ImageSampler


def image_sampler(start: RoundStart) -> ImageSampler:
    """Single images in every step; at least two, since they are compared with each other."""
    if start.tuples < 2:
        raise UserError("A batch of one image has nothing to compare: set rounds.tuples to 2 or more.")
    return ImageSampler(len(start), start.tuples, start.seed)


def two_views(views: Tensor) -> tuple[Tensor, Tensor]:
    """Both views (T, D) of the single images of a batch, from (2, T, 1, D)."""
    return views[0, :, 0], views[1, :, 0]


@torch.no_grad()
def view_similarities(batch: Batch) -> dict[str, Tensor]:
    """Mean cosine of two views of an image and of views of different images, for the log."""
    first, second = two_views(batch.global_batch.views)
    cosines = first @ second.T  # (T, T)
    count = len(cosines)
    own = cosines.diagonal().sum()
    return {
        "positive_similarity": own / count,
        "negative_similarity": (cosines.sum() - own) / max(1, count * (count - 1)),
    }


def queue_length(wanted: int, start: RoundStart) -> int:
    """The length of a queue: beyond half of the collection it would hold the images it is compared with."""
    return max(1, min(wanted, len(start) // 2))


def create_teacher(head: nn.Module) -> nn.Module:
    """A copy of a head that is updated as its moving average (EMA) instead of being trained."""
    return copy.deepcopy(head).requires_grad_(False)


@torch.no_grad()
def update_teacher(teacher: nn.Module, head: nn.Module, decay: float) -> None:
    """Move the parameters of an EMA teacher towards those of its head."""
    for average, newest in zip(teacher.parameters(), head.parameters(), strict=True):
        average.lerp_(newest, 1 - decay)

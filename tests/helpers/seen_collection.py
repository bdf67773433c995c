"""A small collection as a network sees it, for tests of methods: no images, no files."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from insclr.methods.method import Batch, Method, RoundStart
from insclr.model.network import DescriptorNetwork, GeM
from insclr.recipe import RoundRecipe
from insclr.tracking import SilentTracker
from insclr.training.sources import PooledSource
from insclr.training.steps import Round, train_steps

INSTANCES, IMAGES, CHANNELS = 10, 6, 32


class NoBackbone(nn.Module):
    """Stands where no image is ever seen."""

    channels = CHANNELS


def seen_collection(
    folder: Path,
    *,
    spread: float = 0.5,
    instances: int = INSTANCES,
    images: int = IMAGES,
    chained: bool = False,
    tuples: int = 6,
    seed: int = 0,
) -> RoundStart:
    """Images of instances as pooled features around a centre, and three views around each image.

    `spread` is how far images are from their centre or, `chained`, from the image before.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    centres = torch.randn(instances, 1, CHANNELS, generator=generator)
    noise = torch.randn(instances, images, CHANNELS, generator=generator)
    noise = noise.cumsum(1) if chained else noise
    plain = (centres + spread * noise).flatten(0, 1)
    of_views = plain + 0.2 * torch.randn(3, len(plain), CHANNELS, generator=generator)
    backbone: Any = NoBackbone()
    network = DescriptorNetwork(backbone, GeM(), dim=16)
    return RoundStart(
        network, normalize(plain, dim=1), normalize(of_views, dim=2), tuples=tuples, seed=1, folder=folder
    )


def truth() -> Tensor:
    """The instance of every image."""
    return torch.arange(INSTANCES).repeat_interleave(IMAGES)


def batch_of(method: Method, start: RoundStart, step: int = 0, scales: int = 0) -> Batch:
    """The tuples of a step, described by the network as it is."""
    ids = method.sampler.step(step)
    plain = start.network.head(start.plain[ids]).detach()
    views = start.network.head(start.views[: method.needs.augmented, ids])
    teacher = views.detach() if method.needs.ema_decay else None
    return Batch(ids, views, plain, (plain,) * scales, teacher=teacher)


def learn(method: Method, settings: Any, start: RoundStart, steps: int = 60, lr: float = 1e-2) -> None:
    """Train the FC and the method's own layers on the cached features, as a round does."""
    recipe = RoundRecipe(
        train="fc", steps=steps, tuples=start.tuples, lr=lr, schedule="constant", method=settings
    )
    source = PooledSource(start.network, method, start.plain, start.views, seed=0)
    train_steps(
        Round(1, recipe, start.network, source, method, 0.3, start.folder / "round", SilentTracker(), seed=0)
    )


def measured_map(start: RoundStart) -> float:
    """Leave-one-out mAP of the collection as the network sees it now, by hand."""
    descriptors = start.network.describe_pooled(start.plain)
    scores = (descriptors @ descriptors.T).fill_diagonal_(-2)
    right = truth()[:, None] == truth()
    found = []
    for query, order in enumerate(scores.argsort(1, descending=True)[:, :-1]):
        ranks = right[query, order].nonzero()[:, 0]
        found.append(float(((torch.arange(len(ranks)) + 1) / (ranks + 1)).mean()))
    return sum(found) / len(found)

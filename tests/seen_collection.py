"""A small collection as a network sees it, for tests of methods: no images, no files."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from insclr.methods.batch import Batch
from insclr.methods.method import Method, RoundStart
from insclr.model.network import DescriptorNetwork
from insclr.model.pooling import GeM

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
    views = start.network.head(start.views[:1, ids])
    return Batch(ids, views, plain, (plain,) * scales)

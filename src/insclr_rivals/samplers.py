"""Batches of single images, and of images of one group: instances by their labels, or clusters."""

import torch
from torch import Tensor

from insclr.data.tuples import Anchors, draw_images, require_enough_images, step_generator
from insclr.errors import UserError
from insclr.methods.method import Batch, RoundStart


class ImageSampler:
    """Batches of T single images, for methods that need no neighbours: ids (T, 1)."""

    def __init__(self, images: int, tuples: int, seed: int) -> None:
        require_enough_images(images, tuples)
        self._anchors = Anchors(torch.arange(images), tuples, seed)

    def step(self, n: int) -> Tensor:
        """Batch number n, counted from 0, as int64 ids (T, 1)."""
        return self._anchors.step(n)[:, None]


class GroupSampler:
    """Batches of T tuples of images of one group: ids (T, M); every image of a group is an anchor once an epoch.

    The other images of a tuple are drawn at random from the
    anchor's group, each once before any comes twice. Where fewer than T images belong to a group, some are an
    anchor twice in a batch.
    """

    def __init__(self, groups: Tensor, tuples: int, members: int, seed: int) -> None:
        """`groups` (N,) numbers the group of every image, -1 for those that are left out."""
        ids = (groups >= 0).nonzero()[:, 0]
        if not len(ids):
            raise ValueError("no image belongs to a group")
        self._anchors = Anchors(ids, tuples, seed)
        self._groups = groups
        self._members = members
        self._seed = seed
        by_group = ids[groups[ids].argsort(stable=True)]
        counts = torch.bincount(groups[ids])
        self._of_group = by_group.split(counts.tolist())

    def step(self, n: int) -> Tensor:
        """Batch number n, counted from 0, as int64 ids (T, M); the anchor comes first."""
        anchors = self._anchors.step(n)
        generator = step_generator(self._seed, n, 1)
        return torch.stack([self._tuple(int(anchor), generator) for anchor in anchors])

    def _tuple(self, anchor: int, generator: torch.Generator) -> Tensor:
        group = self._of_group[int(self._groups[anchor])]
        others = group[group != anchor]
        # A group of one image repeats it: its views are all the positives it has.
        drawn = draw_images(others if len(others) else group, self._members - 1, generator)
        return torch.cat([torch.tensor([anchor]), drawn])


class EvenSampler:
    """Batches of T single images, ids (T, 1), of groups drawn evenly: a large one does not outweigh the others."""

    def __init__(self, groups: Tensor, tuples: int, seed: int) -> None:
        """`groups` (N,) numbers the group of every image."""
        sizes = torch.bincount(groups)
        self._sizes = sizes[sizes > 0]
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._by_group = groups.argsort(stable=True)
        self._tuples = tuples
        self._seed = seed

    def step(self, n: int) -> Tensor:
        """Batch number n, counted from 0, as int64 ids (T, 1)."""
        generator = step_generator(self._seed, n, 2)
        group = torch.randint(len(self._sizes), (self._tuples,), generator=generator)
        place = (torch.rand(self._tuples, generator=generator) * self._sizes[group]).long()
        return self._by_group[self._starts[group] + place][:, None]


def require_instances(start: RoundStart) -> Tensor:
    """The true instance of every image (N,), numbered without gaps, -1 where unknown."""
    if start.instances is None:
        raise UserError("This method learns from labels: pass --labels CSV.")
    known = start.instances >= 0
    numbers = torch.full_like(start.instances, -1)
    numbers[known] = start.instances[known].unique(return_inverse=True)[1]
    if int(numbers.max()) < 1:
        raise UserError("The labels name one instance only: there is nothing to tell it from.")
    return numbers


def labelled_images(batch: Batch, instances: Tensor) -> tuple[Tensor, Tensor]:
    """Descriptors (B, D) and instances (B,) of the images that have a label: all, but for stand-ins."""
    own = instances[batch.ids.flatten()]
    known = own >= 0
    return batch.augmented.flatten(0, 1)[known], own[known]

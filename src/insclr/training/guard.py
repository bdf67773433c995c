"""The guard: notices, without labels, a round that made things worse, so that the run can step back.

In-sample agreement of views rises even while retrieval falls, so it cannot praise a round; but a collapse shows in
it at once. What keeps a run from learning wrong pairs is decided before it learns: mining must find enough pairs
that pass both thresholds of `mining.candidates`, and they must bear each other out (`mining.consistency`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from insclr.methods.method import Prepared
from insclr.mining.calibrate import random_pairs

MIN_POSITIVES = 1.0  # mined positives an image, below which a collection is not trained on
_SAMPLE = 1000
# Share of images whose own view no longer finds them first. Some loss is progress: another image of the same
# instance may come first. This much is not.
_LOST_VIEWS = 0.3
_SPREAD = 0.5  # of the spread of random pairs must remain
_ALIKE = 0.5  # mean similarity of random pairs that only a collapse reaches


@dataclass(frozen=True)
class Health:
    """How well descriptors tell images apart, with no labels."""

    found: float  # share of images that their own augmented view finds first, among a sample
    alike: float  # mean similarity of random pairs
    spread: float  # standard deviation of the same


def disbelieved(prepared: Prepared) -> bool:
    """Whether mined pairs were asked to bear each other out, and do not."""
    return prepared.consistency is not None and not prepared.consistency.is_enough


def unsafe(prepared: Prepared) -> str:
    """Why nothing may be learned from what was mined; empty where nothing speaks against it."""
    found = prepared.positives_per_image
    if found is not None and found < MIN_POSITIVES:
        return (
            f"only {found:.2f} safe pairs an image were found, and training on fewer than {MIN_POSITIVES:g} "
            "does more harm than good"
        )
    if disbelieved(prepared):
        return (
            f"the pairs that were found do not bear each other out ({prepared.consistency}). The nearest photos seem "
            "to show other things in the same pose or place, and training on them would do harm"
        )
    return ""


def measure(plain: Tensor, augmented: Callable[[Tensor], Tensor], seed: int = 0) -> Health:
    """The health of unit descriptors (N, D) of plain images; `augmented` gives those of a view of some images."""
    sample = torch.randperm(len(plain), generator=torch.Generator().manual_seed(seed))[:_SAMPLE]
    scores = augmented(sample).float() @ plain[sample].float().T  # (sample, sample)
    found = (scores.argmax(1) == torch.arange(len(sample))).float().mean()
    pairs = random_pairs(plain)
    return Health(float(found), float(pairs.mean()), float(pairs.std()))


def worse(before: Health, after: Health) -> str:
    """Why a round's result must not be kept; empty where nothing speaks against it."""
    if after.alike > max(_ALIKE, before.alike + 0.2):
        return f"random pairs became alike ({before.alike:.2f} to {after.alike:.2f}): a collapse"
    if after.spread < _SPREAD * before.spread:
        return f"similarities lost their spread ({before.spread:.3f} to {after.spread:.3f})"
    if after.found < before.found - _LOST_VIEWS:
        return f"fewer images are found by their own view ({before.found:.0%} to {after.found:.0%})"
    return ""

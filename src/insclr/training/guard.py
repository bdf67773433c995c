"""The guard: notices, without labels, a round that made things worse, so that the run can undo it.

In-sample agreement of views rises even while retrieval falls, so it cannot approve a round; but a collapse shows in
it at once. What keeps a run from learning wrong pairs is decided before it learns: mining must find enough pairs
that pass both thresholds of `mining.candidates`, and they must be consistent (`mining.consistency`).
"""

from dataclasses import dataclass

import torch

from insclr.methods.method import Prepared, RoundStart
from insclr.mining.candidates import Consistency, PairTrust
from insclr.mining.own_views import random_pairs

MIN_POSITIVES = 1.0  # mined positives an image: fewer are learned from only where they are very consistent
# Share of images that must have a mined positive, with the same exception. Chosen on two collections of mostly single
# images (0.29 and 0.30), where two rounds lowered mAP by 0.4 to 0.9.
MIN_SHARE_WITH_POSITIVES = 0.4
# Consistency of few pairs that are learned from. It was 0.33 to 0.47 where rounds lowered mAP (Oxford, drawn things
# of which 90 % are single), and 0.56 to 0.72 in six sets of covers, landmarks and products that gained up to 4.
CONSISTENCY_OF_FEW = 0.55
_SAMPLE = 1000
# Share of images whose own view no longer finds them first. Some loss is progress: another image of the same
# instance may come first. This much is not.
_LOST_VIEWS = 0.3
_SPREAD = 0.5  # of the spread of random pairs must remain
_ALIKE = 0.5  # mean similarity of random pairs that only a collapse reaches


@dataclass(frozen=True)
class Health:
    """How well descriptors separate images, measured without labels."""

    found: float  # share of images that their own augmented view finds first, among a sample
    alike: float  # mean similarity of random pairs
    spread: float  # standard deviation of the same


def has_inconsistent_pairs(prepared: Prepared) -> bool:
    """Whether mined pairs were tested for consistency and failed."""
    return prepared.consistency is not None and not prepared.consistency.is_enough


def why_unsafe(prepared: Prepared, trust: PairTrust) -> str:
    """Why nothing may be learned from the mined pairs; empty where there is no reason."""
    few = _why_few(prepared)
    if few and trust is not PairTrust.TRUSTED and not _is_very_consistent(prepared.consistency):
        return few
    if has_inconsistent_pairs(prepared):
        return (
            f"the pairs that were found are inconsistent ({prepared.consistency}). The nearest photos seem to show "
            "other things in the same pose or place, and training on them would do harm"
        )
    return ""


def _is_very_consistent(consistency: Consistency | None) -> bool:
    """Whether few pairs may be learned from; in a small collection pairs agree by chance, and more is demanded."""
    return consistency is not None and consistency.value >= CONSISTENCY_OF_FEW * max(1.0, consistency.chance)


def _why_few(prepared: Prepared) -> str:
    """Why the pairs are few; empty where they are not."""
    found = prepared.positives_per_image
    if found is not None and found < MIN_POSITIVES:
        return (
            f"only {found:.2f} safe pairs an image were found, and training on fewer than {MIN_POSITIVES:g} "
            "does more harm than good"
        )
    if prepared.positive is not None and not prepared.feedback:
        share = float(prepared.positive.any(1).float().mean())
        if share < MIN_SHARE_WITH_POSITIVES:
            return (
                f"only {share:.0%} of the images have a safe pair, and training on fewer than "
                f"{MIN_SHARE_WITH_POSITIVES:.0%} does more harm than good"
            )
    return ""


def measure_health(start: RoundStart, seed: int = 0) -> Health | None:
    """The health of the network as a round sees it; None where the FC is random or there are no views."""
    if start.untrained_fc or not len(start.views):
        return None
    plain = start.descriptors
    sample = torch.randperm(len(plain), generator=torch.Generator().manual_seed(seed))[:_SAMPLE]
    of_views = start.network.describe_pooled(start.views[0][sample])
    scores = of_views.float() @ plain[sample].float().T  # (sample, sample)
    found = (scores.argmax(1) == torch.arange(len(sample))).float().mean()
    pairs = random_pairs(plain)
    return Health(float(found), float(pairs.mean()), float(pairs.std()))


def why_worse(before: Health, after: Health) -> str:
    """Why a round's result must not be kept; empty where there is no reason."""
    if after.alike > max(_ALIKE, before.alike + 0.2):
        return f"random pairs became alike ({before.alike:.2f} to {after.alike:.2f}): a collapse"
    if after.spread < _SPREAD * before.spread:
        return f"similarities lost their spread ({before.spread:.3f} to {after.spread:.3f})"
    if after.found < before.found - _LOST_VIEWS:
        return f"fewer images are found by their own view ({before.found:.0%} to {after.found:.0%})"
    return ""

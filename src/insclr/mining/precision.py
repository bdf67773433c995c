"""The share of chosen images that show the anchor's instance, measured with labels for the log."""

from torch import Tensor


def mean_precision(truth: Tensor, anchors: Tensor, ids: Tensor, chosen: Tensor) -> float | None:
    """Mean over anchors (T,) of the share of the `chosen` (T, K) among `ids` (T, K) that are right.

    `truth` (N,) is the instance of every image, -1 where no label names it. Labels may name some instances only, but
    all images of each: an unlabelled image shows another instance than a labelled anchor, and an unlabelled anchor
    is not counted. None where no anchor counts.
    """
    anchor = truth[anchors][:, None]  # (T, 1)
    judged = chosen.any(1) & (anchor[:, 0] >= 0)
    if not judged.any():
        return None
    right = chosen & (truth[ids] == anchor)
    return float((right.sum(1)[judged].double() / chosen.sum(1)[judged]).mean())

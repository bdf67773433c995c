"""PCA-whitening learned without labels."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from insclr.errors import UserError

FLOOR = 1e-6  # smallest variance divided by, relative to the largest: keeps noise from being blown up


@dataclass(frozen=True)
class Whitening:
    """An affine map x -> projection (x - mean) that evens out the axes of a descriptor space."""

    mean: Tensor  # (C,)
    projection: Tensor  # (D, C)

    def apply(self, features: Tensor) -> Tensor:
        """Whitened features as unit rows."""
        centred = features - self.mean.to(features)
        return F.normalize(centred @ self.projection.to(features).T, dim=1)  # (N, D)


def pca_whitening(features: Tensor, dim: int, power: float = 0.5) -> Whitening:
    """The `dim` strongest principal axes of (N, C) features, each divided by its variance ** power.

    Power 0 only centres and rotates, 0.5 whitens fully; axes without any variance come out as zero.
    """
    _check(features, dim)
    if not 0 <= power <= 1:
        raise UserError(
            f"whitening power {power} is outside 0 to 1. Use 0 for plain PCA, 0.5 for full whitening."
        )
    mean, centred = _centre(features)
    variance, axes = _strongest_axes(centred.T @ centred / len(features), dim)
    scale = variance.clamp(min=FLOOR * float(variance[0])).pow(-power)
    # Beyond the rank of the data an "axis" is rounding noise: it must not enter the descriptor.
    scale[variance <= 1e-12 * variance[0]] = 0
    return Whitening(mean.to(features.dtype), (axes * scale).T.contiguous().to(features.dtype))


def fold_into_fc(fc: nn.Linear, whitening: Whitening) -> None:
    """Set a layer with bias so that fc(x) = projection (x - mean)."""
    shape, wanted = tuple(fc.weight.shape), tuple(whitening.projection.shape)
    if shape != wanted or fc.bias is None:
        raise ValueError(
            f"a whitening of shape {wanted} needs a layer of that shape with a bias, not {shape}"
        )
    with torch.no_grad():
        fc.weight.copy_(whitening.projection)
        fc.bias.copy_(-(whitening.projection.double() @ whitening.mean.double()))


def _check(features: Tensor, dim: int) -> None:
    count, channels = features.shape
    if not 1 <= dim <= channels:
        raise UserError(f"whitening to {dim} dimensions is impossible: the features have {channels}.")
    if count < 2:
        raise UserError(f"whitening needs at least 2 images to learn from, not {count}.")
    if not bool(torch.isfinite(features).all()):
        raise UserError("whitening cannot be learned: the features hold values that are not finite.")


def _centre(features: Tensor) -> tuple[Tensor, Tensor]:
    wide = features.detach().cpu().double()
    mean = wide.mean(dim=0)
    return mean, wide - mean


def _strongest_axes(covariance: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The `dim` largest eigenvalues (dim,), descending, and their axes (C, dim) with a fixed sign."""
    values, axes = torch.linalg.eigh(covariance)
    values, axes = values.flip(0)[:dim].clamp(min=0), axes.flip(1)[:, :dim]
    # eigh leaves the sign open: the largest entry of each axis is made positive, on every machine alike.
    peak = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
    return values, axes * peak.sign()

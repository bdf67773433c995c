"""Whitening: covariance, powers, too few images."""

import numpy as np
import pytest
import torch
from torch import nn

from insclr.errors import UserError
from insclr.model.whitening import fold_into_fc, pca_whitening


def correlated(count=500, channels=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(channels, channels, generator=generator)
    return torch.randn(count, channels, generator=generator) @ mixing + 3


def covariance(features):
    return torch.from_numpy(np.cov(features.double().numpy().T, bias=True))


def test_full_whitening_gives_unit_covariance():
    features = correlated()
    whitening = pca_whitening(features, dim=4)
    projected = (features - whitening.mean) @ whitening.projection.T
    torch.testing.assert_close(covariance(projected), torch.eye(4).double(), atol=1e-3, rtol=0)


def test_power_zero_is_a_rotation_to_the_principal_axes():
    features = correlated()
    whitening = pca_whitening(features, dim=6, power=0)
    torch.testing.assert_close(whitening.projection @ whitening.projection.T, torch.eye(6), atol=1e-5, rtol=0)
    strengths = covariance((features - whitening.mean) @ whitening.projection.T)
    expected = np.linalg.eigvalsh(covariance(features).numpy())[::-1].copy()
    torch.testing.assert_close(strengths, torch.diag(torch.from_numpy(expected)), atol=1e-4, rtol=1e-4)


def test_a_power_between_leaves_variance_to_the_rest():
    features = correlated()
    whitening = pca_whitening(features, dim=3, power=0.25)
    strengths = covariance((features - whitening.mean) @ whitening.projection.T).diagonal()
    expected = np.linalg.eigvalsh(covariance(features).numpy())[::-1][:3] ** 0.5
    assert strengths.tolist() == pytest.approx(expected.tolist(), rel=1e-3)


def test_fewer_images_than_dimensions_stay_finite_and_drop_the_empty_axes():
    features = correlated(count=4, channels=6)
    whitening = pca_whitening(features, dim=6)
    assert torch.isfinite(whitening.projection).all()
    assert (whitening.projection.norm(dim=1) > 0).sum() == 3  # four points span three axes about their mean


def test_apply_gives_unit_rows_and_equals_the_folded_layer():
    features = correlated()
    whitening = pca_whitening(features, dim=4, power=0.25)
    fc = nn.Linear(6, 4)
    fold_into_fc(fc, whitening)
    applied = whitening.apply(features)
    torch.testing.assert_close(applied.norm(dim=1), torch.ones(500))
    folded = nn.functional.normalize(fc(features), dim=1)
    torch.testing.assert_close(folded, applied, atol=1e-4, rtol=1e-4)


def test_impossible_requests_are_explained():
    features = correlated(count=10)
    with pytest.raises(UserError, match="7 dimensions is impossible"):
        pca_whitening(features, dim=7)
    with pytest.raises(UserError, match="power"):
        pca_whitening(features, dim=2, power=1.5)
    with pytest.raises(UserError, match="at least 2 images"):
        pca_whitening(features[:1], dim=2)
    with pytest.raises(UserError, match="not finite"):
        pca_whitening(features / 0, dim=2)
    with pytest.raises(ValueError, match="shape"):
        fold_into_fc(nn.Linear(6, 3), pca_whitening(features, dim=2))

"""The initial FC in closed form."""

import torch
from torch import nn
from torch.nn import functional

from insclr.methods.calibrated import CalibratedSettings
from insclr.mining.candidates import PairTrust
from insclr.training.initial_fc import pca_fc, set_fc, views_fc


def _collection(
    things: int, pictures: int, nuisance: float, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Things in 40 dimensions; pictures and views differ mostly along 10 others."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        moves = torch.randn(*shape, 10, generator=generator) * nuisance
        return torch.cat([0.3 * torch.randn(*shape, 40, generator=generator), moves], dim=-1)

    centres = torch.cat([torch.randn(things, 40, generator=generator), torch.zeros(things, 10)], dim=1)
    truth = torch.arange(things).repeat_interleave(pictures)
    plain = centres[truth] + noise(len(truth))
    views = plain + noise(3, len(truth))
    return functional.normalize(plain, dim=1), functional.normalize(views, dim=2), truth


def _right(descriptors: torch.Tensor, truth: torch.Tensor, top: int) -> float:
    scores = (descriptors @ descriptors.T).fill_diagonal_(-2)
    return float((truth[scores.topk(top).indices] == truth[:, None]).float().mean())


def test_whitening_by_views_finds_more_of_a_thing_than_pca() -> None:
    plain, views, truth = _collection(things=40, pictures=8, nuisance=2.0)
    initial = views_fc(plain, views, 32, CalibratedSettings(), seed=0)
    by_views = _right(initial.whitening.apply(plain), truth, 7)
    by_pca = _right(pca_fc(plain, 32, 0.25).whitening.apply(plain), truth, 7)
    assert by_views > by_pca + 0.1
    assert initial.reasons


def test_a_collection_of_singles_is_not_harmed() -> None:
    # Nothing to mine: neighbours of one image stay what they were for its view.
    plain, views, truth = _collection(things=150, pictures=1, nuisance=1.0)
    initial = views_fc(plain, views, 32, CalibratedSettings(), seed=0)

    def found(plain: torch.Tensor, view: torch.Tensor) -> float:
        return float(((view @ plain.T).argmax(1) == truth).float().mean())

    before = found(plain, views[1])
    assert found(initial.whitening.apply(plain), initial.whitening.apply(views[1])) >= before


def test_a_layer_wider_than_the_collection_is_filled_up_with_zeros() -> None:
    plain, _, _ = _collection(things=5, pictures=2, nuisance=1.0)
    fc = nn.Linear(50, 32)
    set_fc(fc, pca_fc(plain, 32, 0.25))
    described = fc(plain)
    assert described[:, :9].abs().sum() > 0
    assert described[:, 9:].abs().max() == 0


def test_without_mined_pairs_the_initial_fc_separates_look_alikes() -> None:
    # Forty of 50 axes tell the stand that eight things share, ten tell the thing; views move all alike.
    generator = torch.Generator().manual_seed(0)
    stands, things = torch.randn(12, 40, generator=generator), 0.2 * torch.randn(96, 10, generator=generator)
    truth = torch.arange(96).repeat(3)
    plain = torch.cat([stands[truth % 12], things[truth]], dim=1)
    plain = plain + 0.15 * torch.randn(plain.shape, generator=generator)
    views = plain + 0.15 * torch.randn(4, *plain.shape, generator=generator)

    def right(trust: PairTrust) -> float:
        initial = views_fc(plain, views, 32, CalibratedSettings(), seed=0, trust=trust)
        return _right(initial.whitening.apply(plain), truth, 2)

    assert right(PairTrust.UNTRUSTED) > right(PairTrust.UNTESTED) + 0.03


def test_mutual_neighbours_help_instances_of_few_images() -> None:
    # Three images of a thing, and own views that differ little: the thresholds alone find hardly any pair.
    def collection(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        truth = torch.arange(60).repeat_interleave(3)
        centres = torch.cat([torch.randn(60, 30, generator=generator), torch.zeros(60, 10)], dim=1)
        spread = torch.cat([torch.full((30,), 0.4), torch.full((10,), 1.2)])
        plain = centres[truth] + spread * torch.randn(180, 40, generator=generator)
        views = plain + 0.3 * torch.randn(3, 180, 40, generator=generator)
        return functional.normalize(plain, dim=1), functional.normalize(views, dim=2), truth

    for seed in (0, 1):
        plain, views, truth = collection(seed)
        with_pairs = views_fc(plain, views, 32, CalibratedSettings(), seed=0)
        without = views_fc(plain, views, 32, CalibratedSettings(), seed=0, trust=PairTrust.UNTRUSTED)
        found = _right(with_pairs.whitening.apply(plain), truth, 2)
        assert found > _right(without.whitening.apply(plain), truth, 2) + 0.05

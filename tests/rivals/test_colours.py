"""Augmented views: each operation against torchvision's, and that a view repeats."""

import importlib

import pytest
import torch

from insclr.data.augment import find_augmentation
from insclr.torchvision_import import import_torchvision
from insclr_rivals.colours import BYOL, PUBLISHED, blur, shifted_hue

import_torchvision()
transforms = importlib.import_module("torchvision.transforms.v2")


def _view(side: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (3, side, side), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("shift", [-0.2, -0.05, 0.0, 0.1, 0.5])
def test_a_shift_of_hue_is_torchvisions(shift: float) -> None:
    pixels = _view().float() / 255
    torch.testing.assert_close(
        shifted_hue(pixels, shift), transforms.functional.adjust_hue(pixels, shift), atol=1e-4, rtol=0
    )


def test_grey_pixels_have_no_hue_to_shift() -> None:
    grey = torch.full((3, 8, 8), 0.4)
    torch.testing.assert_close(shifted_hue(grey, 0.3), grey)


@pytest.mark.parametrize("sigma", [0.1, 0.8, 2.0])
def test_a_blur_is_torchvisions(sigma: float) -> None:
    pixels = _view().float() / 255
    size = 2 * max(1, -int(-3 * sigma // 1)) + 1
    expected = transforms.functional.gaussian_blur(pixels, [size, size], [sigma, sigma])
    torch.testing.assert_close(blur(pixels, sigma), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["paper", *PUBLISHED])
def test_a_view_depends_on_its_generator_alone(name: str) -> None:
    def made(seed: int, number: int = 0) -> torch.Tensor:
        recolour = find_augmentation(name)
        return recolour(_view(), number, torch.Generator().manual_seed(seed)) if recolour else _view()

    assert torch.equal(made(1), made(1))
    assert made(1).dtype == torch.uint8
    different = [not torch.equal(made(seed), _view()) for seed in range(20)]
    assert any(different) == (name != "paper")


def test_every_call_takes_the_same_draws() -> None:
    left = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        BYOL(_view(), seed, generator)
        other = torch.Generator().manual_seed(seed)
        torch.rand(4, generator=other), torch.rand(5, generator=other), torch.randperm(4, generator=other)
        left.append(torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=other)))
    assert all(left)


def test_the_two_views_of_byol_are_made_differently() -> None:
    """The first is always blurred and never solarised, the second the other way round, mostly."""
    smooth = [[], []]  # type: ignore[var-annotated]
    for number in (0, 1):
        for seed in range(30):
            view = BYOL(_view(112), number, torch.Generator().manual_seed(seed)).float()
            smooth[number].append((view[:, 1:] - view[:, :-1]).abs().mean() / view.std())
    assert torch.tensor(smooth[0]).mean() < 0.9 * torch.tensor(smooth[1]).mean()

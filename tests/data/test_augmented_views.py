"""Random crops: where they are taken, and that they are resized as Pillow would."""

import importlib

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.made_files import photo
from insclr.data.augment import augmented_view, random_box
from insclr.data.views import fit_image
from insclr.torchvision_import import import_torchvision

import_torchvision()
transforms = importlib.import_module("torchvision.transforms.v2")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def boxes(width: int, height: int, n: int = 2000) -> torch.Tensor:
    g = generator(0)
    found = [random_box(width, height, g, (0.4, 1.0), (0.75, 1.33)) for _ in range(n)]
    return torch.tensor(found, dtype=torch.float32)


def test_augmented_view_is_a_pure_function_of_picture_and_generator() -> None:
    image = photo(90, 60)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    views = [augmented_view(pixels(image), 24, generator(seed)) for seed in (3, 3, 4)]
    assert (views[0].dtype, tuple(views[0].shape)) == (torch.uint8, (3, 24, 24))
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (64, 64), (10, 500), (500, 1)])
def test_every_view_takes_the_same_draws(size: tuple[int, int]) -> None:
    # Else the second view of a picture would depend on how its first one fell out.
    used, skipped = generator(1), generator(1)
    augmented_view(pixels(photo(*size)), 8, used)
    torch.rand((), generator=skipped)
    torch.rand(10, 4, generator=skipped)
    assert torch.equal(used.get_state(), skipped.get_state())


def test_crop_of_everything_is_the_plain_view() -> None:
    image = photo(64, 64)
    view = augmented_view(pixels(image), 24, generator(0), scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0)
    plain = torch.tensor(fit_image(image, 24, "square"))  # by Pillow: torch's kernel rounds otherwise
    assert (view.int() - plain.int()).abs().max() <= 2
    mirrored = augmented_view(pixels(image), 24, generator(0), scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=1.0)
    assert torch.equal(mirrored, view.flip(2))


@pytest.mark.parametrize("seed", range(4))
def test_augmented_view_is_the_part_in_its_box(seed: int) -> None:
    image = photo(90, 60)
    view = augmented_view(pixels(image), 24, generator(seed), flip=0.0)
    draws = generator(seed)
    torch.rand((), generator=draws)
    left, top, right, bottom = random_box(90, 60, draws, (0.4, 1.0), (0.75, 1.33))
    bicubic = transforms.InterpolationMode.BICUBIC
    expected = transforms.functional.resized_crop(
        transforms.functional.pil_to_tensor(image), top, left, bottom - top, right - left, [24, 24], bicubic
    )
    assert (view.int() - expected.int()).abs().max() <= 1


def test_half_of_the_views_are_mirrored() -> None:
    image = Image.fromarray(np.tile(np.arange(64, dtype=np.uint8)[None, :, None] * 4, (64, 1, 3)))
    g = generator(0)
    views = torch.stack([augmented_view(pixels(image), 8, g) for _ in range(400)]).float()
    mirrored = (views[..., 0] > views[..., -1]).float().mean(dim=(1, 2))
    assert set(mirrored.tolist()) == {0.0, 1.0}
    assert 0.42 < mirrored.mean() < 0.58


def test_boxes_follow_the_paper() -> None:
    box = boxes(1000, 1000)
    left, top, right, bottom = box.T
    w, h = right - left, bottom - top
    area, aspect = w * h / 1000**2, w / h
    assert float(box.min()) >= 0
    assert float(box.max()) <= 1000
    assert 0.399 < area.min() < 0.42
    assert 0.749 < aspect.min() < 0.76
    assert 1.31 < aspect.max() < 1.331
    assert abs(aspect.log().mean()) < 0.02


@pytest.mark.parametrize(("width", "height"), [(100, 100), (160, 100), (100, 230)])
def test_boxes_are_distributed_as_those_of_torchvision(width: int, height: int) -> None:
    library = transforms.RandomResizedCrop(8, scale=(0.4, 1.0), ratio=(0.75, 1.33))
    canvas = torch.zeros(3, height, width)
    torch.manual_seed(0)
    found = [library.make_params([canvas]) for _ in range(2000)]
    theirs = torch.tensor(
        [[p["left"], p["top"], p["left"] + p["width"], p["top"] + p["height"]] for p in found]
    )
    ours = boxes(width, height)
    quantiles = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    gap = ours.quantile(quantiles, dim=0) - theirs.float().quantile(quantiles, dim=0)
    assert gap.abs().max() < 0.05 * max(width, height)


def test_a_strip_gives_its_middle() -> None:
    # No shape of ratio <= 1.33 and area >= 0.4 fits into 10:1, so the largest centred one is taken.
    # 1.33 x 100 = 133 wide in the middle of 1000, and 75 / 0.75 = 100 high in the middle of 1000.
    wide = random_box(1000, 100, generator(0), (0.4, 1.0), (0.75, 1.33))
    assert wide == pytest.approx((433.5, 0, 566.5, 100), abs=0.5)
    assert random_box(75, 1000, generator(0), (0.4, 1.0), (0.75, 1.33)) == (0, 450, 75, 550)


def test_a_picture_decoded_smaller_gives_the_same_part() -> None:
    image = photo(400, 300)
    small = image.resize((200, 150), Image.Resampling.BICUBIC)
    a, b = (augmented_view(pixels(picture), 32, generator(5)).float() for picture in (image, small))
    assert (a - b).abs().mean() < 2

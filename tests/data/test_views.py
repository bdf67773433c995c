"""Plain views: whole images, boxes, the zoomed view, scales."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from helpers.made_files import photo
from insclr.data.views import Pixels, at_scale, descriptor_views, fit_image


def _resized(image: Image.Image, shape: tuple[int, ...]) -> Pixels:
    _, height, width = shape
    wide = image.resize((width, image.height), Image.Resampling.BICUBIC)  # rows first
    return np.asarray(wide.resize((width, height), Image.Resampling.BICUBIC)).transpose(2, 0, 1)


def _noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_without_a_box_the_whole_image_is_seen_once() -> None:
    image = _noise(60, 40)
    for fit in ("square", "longest"):
        (view,) = descriptor_views(image, 20, fit)
        assert np.array_equal(view, _resized(image, view.shape))


def test_a_thumbnail_is_by_lanczos_and_never_enlarged() -> None:
    """As cnnimageretrieval and the released code make theirs."""
    (view,) = descriptor_views(_noise(60, 40), 20, "thumbnail")
    expected = _noise(60, 40).resize((20, 13), Image.Resampling.LANCZOS)
    assert np.array_equal(view, np.asarray(expected).transpose(2, 0, 1))
    (small,) = descriptor_views(_noise(60, 40), 100, "thumbnail")
    assert np.array_equal(small, np.asarray(_noise(60, 40)).transpose(2, 0, 1))


def test_zoom_adds_a_mirrored_view_of_the_middle() -> None:
    # Columns 0 to 9 hold their own number: of the middle 0.6, columns 2 to 7, the last comes first.
    image = Image.fromarray(np.tile(np.arange(10, dtype=np.uint8)[None, :, None], (10, 1, 3)))
    whole, closer = descriptor_views(image, 6, "square", zoom=0.6)
    assert closer.shape == whole.shape
    assert closer[0, 0].tolist() == [7, 6, 5, 4, 3, 2]


@pytest.mark.parametrize(
    ("image", "box", "size", "expected"),
    [
        ((1000, 800), (100, 50, 300, 150), 500, (50, 100)),  # 500 x 200 / 1000 = 100
        ((1000, 800), (0, 0, 100, 400), 500, (200, 50)),  # tall: 500 x 400 / 1000 = 200
        ((1000, 800), (0, 0, 333, 111), 500, (55, 166)),  # 166.5 rounded down; 111 x 166 / 333 = 55.3
        ((1000, 800), (0, 0, 1000, 800), 500, (400, 500)),  # a box around everything is the whole image
        ((100, 80), (10, 10, 30, 20), 500, (10, 20)),  # 500 x 20 / 100 = 100 would enlarge it
        ((1000, 800), (5, 5, 6, 6), 500, (1, 1)),
    ],
)
def test_a_crop_is_scaled_with_its_image_and_never_enlarged(
    image: tuple[int, int], box: tuple[int, int, int, int], size: int, expected: tuple[int, int]
) -> None:
    whole = _noise(*image)
    (view,) = descriptor_views(whole, size, "longest", box=box)
    assert tuple(view.shape) == (3, *expected)
    assert np.array_equal(view, _resized(whole.crop(box), view.shape))


def test_a_square_view_of_a_crop_has_the_size_of_every_other() -> None:
    image = _noise(100, 80)
    (view,) = descriptor_views(image, 50, "square", box=(10, 10, 30, 20))
    assert view.shape == (3, 50, 50)
    assert np.array_equal(view, _resized(image.crop((10, 10, 30, 20)), view.shape))


@pytest.mark.parametrize(
    ("size", "expected"), [((90, 60), (3, 21, 32)), ((20, 40), (3, 32, 16)), ((1, 500), (3, 32, 1))]
)
def test_plain_longest_view_keeps_the_aspect(size: tuple[int, int], expected: tuple[int, ...]) -> None:
    assert fit_image(photo(*size), 32, "longest").shape == expected


def test_resizing_is_antialiased() -> None:
    stripes = np.zeros((256, 256, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    view = fit_image(Image.fromarray(stripes), 32, "square").astype(float)
    # Stripes finer than the view's pixels melt into grey; picking single pixels would give black or white.
    assert np.abs(view - 127.5).max() < 8


def test_other_scales_are_interpolated_from_the_view_of_scale_1() -> None:
    # Half of 4 columns lies midway between neighbours; twice as many a quarter and three quarters of the way.
    columns = np.broadcast_to(np.float32([0, 100, 200, 40]), (1, 3, 4, 4))  # type: ignore[arg-type]
    assert at_scale(columns, 1) is columns
    assert at_scale(columns, 0.5)[0, 0].tolist() == [[50, 120], [50, 120]]
    assert at_scale(columns, 2.0)[0, 0, 0].tolist() == [0, 25, 75, 125, 175, 160, 80, 40]
    assert at_scale(np.zeros((1, 3, 10, 15), np.float32), 2**0.5).shape == (1, 3, 14, 21)  # 14.1, 21.2
    assert at_scale(np.zeros((1, 3, 1, 49), np.float32), 0.01).shape == (1, 3, 1, 1)


@pytest.mark.parametrize("scale", [0.5, 0.7071, 1.4142, 0.03])
def test_other_scales_are_those_of_torch(scale: float) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 37, 50)).astype(np.float32)
    # torch rounds sizes down; the smallest view keeps a pixel.
    factors = tuple(max(scale, (1 + 1e-9) / side) for side in images.shape[2:])
    by_torch = functional.interpolate(
        torch.from_numpy(images), scale_factor=factors, mode="bilinear", align_corners=False
    )
    np.testing.assert_allclose(at_scale(images, scale), by_torch.numpy(), rtol=0, atol=2e-3)
    np.testing.assert_allclose(at_scale(images.astype(np.uint8), scale), by_torch.numpy(), rtol=0, atol=2e-3)


def test_a_thumbnail_is_reduced_by_lanczos_and_never_enlarged() -> None:
    image = _noise(90, 60)
    (view,) = descriptor_views(image, 30, "thumbnail")
    expected = np.asarray(image.resize((30, 20), Image.Resampling.LANCZOS)).transpose(2, 0, 1)
    assert np.array_equal(view, expected)
    (same,) = descriptor_views(image, 1024, "thumbnail")
    assert np.array_equal(same, np.asarray(image).transpose(2, 0, 1))
    # A crop of a third of the width is scaled with its image: 30 / 90 of its 30 x 60 pixels.
    (crop,) = descriptor_views(image, 30, "thumbnail", box=(0, 0, 30, 60))
    assert crop.shape == (3, 20, 10)
    (small,) = descriptor_views(image, 1024, "thumbnail", box=(0, 0, 30, 60))
    assert small.shape == (3, 60, 30)

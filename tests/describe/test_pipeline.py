"""Describing images: scales, boxes, batches, threads, unreadable files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from insclr.data.images import ImageList, Skipped, list_images
from insclr.data.views import Fit, fit_image
from insclr.describe.pipeline import Request, describe_files, descriptor_settings
from insclr.engine.engine import Output, images_at_once
from insclr.engine.torch_engine import TorchEngine
from insclr.errors import UserError
from insclr.model.network import DescriptorNetwork, create_network
from insclr.recipe import DescriptorRecipe, NetworkRecipe


@pytest.fixture(scope="module")
def network() -> DescriptorNetwork:
    torch.manual_seed(0)
    return create_network(NetworkRecipe(dim=16))


def _described(
    network: DescriptorNetwork,
    images: ImageList,
    size: int,
    fit: Fit,
    output: Output = "descriptor",
    **options: Any,
) -> torch.Tensor:
    scales = options.pop("scales", (1.0,))
    request = Request(DescriptorRecipe(size=size, fit=fit, scales=scales), output)
    return torch.from_numpy(describe_files(TorchEngine(network), images, request, **options).descriptors)


def _pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]


@pytest.fixture
def odd_shapes(tmp_path: Path) -> ImageList:
    """Photos of several shapes, some alike, in one folder."""
    rng = np.random.default_rng(0)
    for i, (width, height) in enumerate([(80, 60), (60, 80), (80, 60), (64, 64), (120, 40)]):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    return list_images(tmp_path)


def test_an_engine_sees_fewer_large_images_at_once() -> None:
    """As many pixels as its batch of images of 224 px: memory stays flat."""

    class Eight:
        batch = 8

    sides = (100, 224, 320, 448, 1024)
    assert [images_at_once(Eight(), (side, side)) for side in sides] == [8, 8, 3, 2, 1]  # type: ignore[arg-type]
    assert images_at_once(Eight(), (320, 240), (2**0.5, 1.0)) == 2  # type: ignore[arg-type]


def test_at_their_own_size_photos_are_described_one_by_one_as_in_a_batch(
    network: DescriptorNetwork, odd_shapes: ImageList
) -> None:
    for workers in (0, 2):
        found = _described(network, odd_shapes.subset([0, 1, 2]), size=80, fit="longest", workers=workers)
        with torch.no_grad():
            alone = torch.cat([network(_pixels(Image.open(odd_shapes.file(i)))) for i in range(3)])
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fit", ["square", "longest"])
def test_scales_come_from_the_view_of_scale_1_and_are_averaged_into_a_unit_vector(
    network: DescriptorNetwork, odd_shapes: ImageList, fit: Fit
) -> None:
    found = _described(network, odd_shapes, size=48, fit=fit, scales=(1.5, 1.0), workers=0)
    for i in range(len(odd_shapes)):
        view = torch.tensor(fit_image(Image.open(odd_shapes.file(i)), 48, fit))[None].float()
        larger = functional.interpolate(view, scale_factor=1.5, mode="bilinear", align_corners=False)
        with torch.no_grad():
            alone = functional.normalize(network(view) + network(larger), dim=1)[0]
        torch.testing.assert_close(found[i], alone, rtol=0, atol=1e-5)


def test_a_box_is_cut_from_the_original_and_scaled_with_it(
    network: DescriptorNetwork, odd_shapes: ImageList
) -> None:
    # 40 px for the 80 px of the longest side: the box of 32 x 24 becomes 16 x 12.
    found = _described(
        network, odd_shapes.subset([0]), size=40, fit="longest", boxes=[(10, 20, 42, 44)], workers=0
    )
    crop = Image.open(odd_shapes.file(0)).crop((10, 20, 42, 44))
    with torch.no_grad():
        alone = network(_pixels(crop.resize((16, 12), Image.Resampling.BICUBIC)))
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


def test_a_box_fills_a_square_view(network: DescriptorNetwork, odd_shapes: ImageList) -> None:
    found = _described(
        network, odd_shapes.subset([0]), size=32, fit="square", boxes=[(10, 20, 42, 52)], workers=0
    )
    with torch.no_grad():
        alone = network(_pixels(Image.open(odd_shapes.file(0)).crop((10, 20, 42, 52))))
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


def test_an_unreadable_photo_has_a_zero_row_and_a_reason(
    network: DescriptorNetwork, odd_shapes: ImageList
) -> None:
    odd_shapes.file(1).write_bytes(b"")
    skipped = Skipped()
    found = _described(network, odd_shapes, size=32, fit="square", skipped=skipped, workers=0)
    assert found[1].abs().sum() == 0
    assert found.norm(dim=1).tolist() == pytest.approx([1, 0, 1, 1, 1])
    assert [path for path, _ in skipped] == ["1.png"]


def test_pooled_features_come_before_the_fc(network: DescriptorNetwork, odd_shapes: ImageList) -> None:
    pooled = _described(network, odd_shapes, size=64, fit="square", output="pooled", workers=0)
    assert pooled.shape == (5, 1280)
    described = _described(network, odd_shapes, size=64, fit="square", workers=0)
    with torch.no_grad():
        torch.testing.assert_close(network.head(pooled), described, rtol=0, atol=1e-5)


def test_settings_change_what_the_user_names_and_nothing_else() -> None:
    remembered = DescriptorRecipe(size=160, fit="square", scales=(1.0,))
    assert descriptor_settings(remembered, 0, "", "") == remembered
    assert descriptor_settings(remembered, 224, "longest", "1.5,1") == DescriptorRecipe(
        size=224, fit="longest", scales=(1.5, 1.0)
    )
    for wrong in (
        (0, "tall", ""),
        (0, "", "big"),
        (4, "", ""),
        (0, "", "0"),
        (0, "", "1,nan"),
        (0, "", "inf"),
    ):
        with pytest.raises(UserError):
            descriptor_settings(remembered, *wrong)

"""Views that a graph makes are those of `fit_image`, pixel by pixel, in any shape."""

import numpy as np
import pytest
import torch
from PIL import Image

from insclr.data.views import Fit, fit_image
from insclr.engine.view_graph import ViewsOf
from insclr.recipe import DescriptorRecipe


@pytest.mark.parametrize("fit", ["square", "longest"])
@pytest.mark.parametrize("size", [(200, 150), (150, 200), (130, 200), (60, 200), (200, 60), (30, 30)])
def test_views_of_landscape_and_portrait_photos_are_equal(fit: Fit, size: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (size[1] // 5, size[0] // 5, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())[None].float()
    (view,) = ViewsOf(DescriptorRecipe(size=64, fit=fit, zoom=0.0, scales=(1.0,)))(pixels)
    same = view[0].numpy() == fit_image(image, 64, fit)
    assert same.mean() > 0.99  # a value between two grey levels may be rounded either way

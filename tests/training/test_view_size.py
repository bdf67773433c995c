"""The size of views is chosen by the photos, without labels."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from insclr.data.images import ImageList, list_images
from insclr.describe.collection_features import PooledFeatures
from insclr.recipe import Recipe, load_recipe
from insclr.training import view_size
from insclr.training.view_size import fit_size, share_kept


def sizes(recipe: Recipe) -> set[int]:
    views = {side for each in recipe.rounds for side in (each.plain_size, each.augmented_size)}
    return {recipe.descriptor.size, recipe.large_size} | views


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> ImageList:
    """Photos of 60 px: twenty textures, five of each."""
    folder = tmp_path_factory.mktemp("hundred")
    rng = np.random.default_rng(0)
    for texture in range(20):
        grain = rng.integers(0, 256, (80, 80, 3), dtype=np.uint8)
        for number in range(5):
            top, left = rng.integers(0, 20, 2)
            Image.fromarray(grain[top : top + 60, left : left + 60]).save(folder / f"{texture}-{number}.png")
    return list_images(folder)


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_size, "_SIZES", (32, 48, 64, 96))


def test_the_share_of_neighbours_that_views_keep() -> None:
    # On a circle: the views of the first two photos stay where they are, those of the others change places.
    angles = torch.tensor([0.0, 0.1, 3.0, 3.3])
    moved = torch.tensor([0.0, 0.1, 0.05, 3.3])
    rows, views = (torch.stack([a.cos(), a.sin()], dim=1) for a in (angles, moved))
    found = PooledFeatures(rows.half(), views.half()[None], torch.arange(4))
    assert (
        share_kept(found, neighbours=1) == 0.75
    )  # the third finds the first or second, no longer the fourth


@pytest.mark.usefixtures("small_sizes")
def test_the_size_with_the_most_stable_neighbours_is_chosen(hundred: ImageList) -> None:
    recipe, why = fit_size(load_recipe("fast"), hundred)
    shares = {int(size): float(share) for share, size in re.findall(r"([\d.]+)% at (\d+) px", why)}
    assert len(shares) >= 2
    assert set(shares) <= {32, 48}  # photos of 60 px are not enlarged
    best = max(shares, key=lambda size: shares[size])
    assert why.startswith(f"views of {best} px")
    assert sizes(recipe) == {best, 0}


@pytest.mark.usefixtures("small_sizes")
def test_sizes_that_take_longer_than_the_minutes_are_left_out(hundred: ImageList) -> None:
    recipe, why = fit_size(load_recipe("default", ("minutes=0.0001",)), hundred)
    assert sizes(recipe) == {32, 0}
    assert why.count("% at") == 1


@pytest.mark.usefixtures("small_sizes")
def test_photos_that_cannot_be_read_are_left_to_the_run(tmp_path: Path) -> None:
    for number in range(100):
        Image.new("RGB", (60, 60)).save(tmp_path / f"{number}.png")
        whole = (tmp_path / f"{number}.png").read_bytes()
        (tmp_path / f"{number}.png").write_bytes(whole[:60])
    recipe, why = fit_size(load_recipe("fast"), list_images(tmp_path))
    assert sizes(recipe) == {48, 0}
    assert why == "views of 48 px, by the pixels of the photos"


@pytest.mark.parametrize(
    ("backbone", "side", "expected"),
    [
        ("vit_small_patch16_224", 600, 224),
        ("vit_small_patch16_224", 200, 160),
        ("levit_128s", 100, 224),  # which takes no other
    ],
)
def test_a_transformer_keeps_the_size_that_it_was_trained_at(
    backbone: str, side: int, expected: int, tmp_path: Path
) -> None:
    for number in range(100):
        Image.new("RGB", (side, side)).save(tmp_path / f"{number}.png")
    recipe, why = fit_size(load_recipe("fast", (f"network.backbone={backbone}",)), list_images(tmp_path))
    assert sizes(recipe) == {expected, 0}
    assert ("the only size that the network takes" in why) == (backbone == "levit_128s")

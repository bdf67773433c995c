"""What a run is asked for is fitted to the photos before anything is made."""

from pathlib import Path

import pytest
from PIL import Image

from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.options import TrainOptions
from insclr.recipe import Recipe, load_recipe
from insclr.training.plan import choose_recipe
from insclr.training.view_size import fit_size


def sizes(recipe: Recipe) -> set[int]:
    views = {side for each in recipe.rounds for side in (each.plain_size, each.augmented_size)}
    return {recipe.descriptor.size, recipe.large_size} | views


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, size in enumerate([(300, 200), (320, 240), (64, 64)]):
        Image.new("RGB", size).save(tmp_path / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("name", ["fast", "default"])
def test_photos_with_enough_pixels_are_seen_larger(name: str, photos: Path) -> None:
    assert sizes(fit_size(load_recipe(name), list_images(photos))[0]) == {224, 0}


def test_large_photos_are_seen_at_320_px(photos: Path) -> None:
    Image.new("RGB", (1024, 768)).save(photos / "2.png")
    Image.new("RGB", (1024, 768)).save(photos / "0.png")
    assert sizes(fit_size(load_recipe("fast"), list_images(photos))[0]) == {320, 0}
    assert sizes(fit_size(load_recipe("fast", ("large_size=224",)), list_images(photos))[0]) == {224, 0}


def test_small_photos_are_not_enlarged(photos: Path) -> None:
    (photos / "0.png").unlink()
    Image.new("RGB", (200, 220)).save(photos / "1.png")
    assert sizes(fit_size(load_recipe("fast"), list_images(photos))[0]) == {160, 0}


@pytest.mark.parametrize("change", ["descriptor.size=96", "rounds.0.plain_size=96"])
def test_a_size_set_by_hand_holds(change: str, photos: Path) -> None:
    recipe = load_recipe("fast", (change,))
    assert fit_size(recipe, list_images(photos))[0] == recipe
    assert 96 in sizes(recipe)


def test_one_option_sets_the_size_of_every_view(photos: Path) -> None:
    recipe = load_recipe("default", TrainOptions(size=256).recipe_changes)
    assert sizes(fit_size(recipe, list_images(photos))[0]) == {256, 0}


@pytest.mark.parametrize("side", [-1, 15, 5000])
def test_an_impossible_size_is_an_error_that_names_the_limit(side: int) -> None:
    with pytest.raises(UserError, match=r"size.*(16|4096)"):
        load_recipe("fast", TrainOptions(size=side).recipe_changes)


def test_the_largest_size_itself_can_be_set(photos: Path) -> None:
    recipe = load_recipe("fast", ("large_size=240", "rounds.0.plain_size=96"))
    assert sizes(fit_size(recipe, list_images(photos))[0]) == {224, 0}


def test_a_recipe_at_hand_is_changed_as_a_named_one_is(tmp_path: Path) -> None:
    asked = ("minutes=20.0", "rounds.4.steps=7")
    changed = choose_recipe(tmp_path, load_recipe("default"), asked, resume=False)
    assert changed == load_recipe("default", asked)
    assert (changed.minutes, changed.rounds[4].steps) == (20, 7)

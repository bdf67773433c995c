import pytest

from insclr.errors import UserError
from insclr.recipe import RoundRecipe
from insclr.training.fit import fit_to_collection


def test_a_small_collection_shrinks_pool_tuples_and_k(caplog: pytest.LogCaptureFixture) -> None:
    fitted = fit_to_collection(RoundRecipe(), images=5)
    assert (fitted.pool, fitted.tuples, fitted.mining.k) == (4, 5, 4)
    assert "the pool shrinks to 4" in caplog.text
    with pytest.raises(UserError, match="add images"):
        fit_to_collection(RoundRecipe(), images=4)


def test_steps_follow_the_number_of_images_up_to_a_limit() -> None:
    recipe = RoundRecipe(steps=400, epochs=5, tuples=64)
    assert fit_to_collection(recipe, images=2560).steps == 200
    assert fit_to_collection(recipe, images=100_000).steps == 400
    assert fit_to_collection(RoundRecipe(steps=400), images=600).steps == 400

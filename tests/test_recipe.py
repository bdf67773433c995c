import tomllib
from pathlib import Path

import pytest

from insclr.errors import UserError
from insclr.recipe import Recipe, from_table, load_recipe, recipe_names, to_toml


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_survives_being_written_and_read(name: str) -> None:
    recipe = load_recipe(name)
    for comments in (False, True):
        assert from_table(tomllib.loads(to_toml(recipe, comments=comments))) == recipe
    assert recipe.name == name
    assert recipe.about


def test_the_papers_table_for_landmarks() -> None:
    recipe = load_recipe("paper-gldv2")
    assert (recipe.network.backbone, recipe.network.dim, recipe.network.gem_p) == ("resnet101", 2048, 3.0)
    assert recipe.descriptor.scales == (2**0.5, 1.0, 2**-0.5)
    assert (recipe.descriptor.size, recipe.descriptor.fit) == (1024, "longest")
    first, second = recipe.rounds
    batches = [each.tuples * (1 + each.neighbours) for each in recipe.rounds]
    assert batches == [200, 64]
    assert [(each.augmented_size, each.plain_size) for each in recipe.rounds] == [(224, 512), (448, 512)]
    assert (first.steps, first.lr, first.milestones) == (60_000, 1e-4, (30_000, 45_000))
    assert (second.steps, second.lr, second.milestones) == (40_000, 3e-5, (20_000,))
    for each in recipe.rounds:
        assert (each.method, each.pool, each.neighbours, each.weight_decay) == ("D", 500, 3, 1e-4)
        assert (each.mining.strategy, each.mining.batch_threshold) == ("plain", 0.65)
        assert (each.mining.aggregate, each.mining.choose, each.mining.k, each.mining.repeats) == (
            "mean",
            "topk",
            5,
            4,
        )
        assert (each.loss.margin, each.loss.normalise) == (0.4, "sum")


def test_the_released_recipe_for_instre() -> None:
    recipe = load_recipe("paper-instre")
    assert (recipe.network.backbone, recipe.network.dim, recipe.descriptor.size) == ("resnet50", 256, 256)
    assert [(each.steps, each.lr, each.clip) for each in recipe.rounds] == [
        (4000, 3e-4, 10.0),
        (4000, 3e-5, 10.0),
    ]
    assert all((each.mining.k, each.mining.repeats) == (20, 2) for each in recipe.rounds)


def test_a_change_reaches_one_round_or_all() -> None:
    recipe = load_recipe("paper-gldv2", ("rounds.1.lr=1e-6", "rounds.mining.k=7", "network.pooling=mac"))
    assert [each.lr for each in recipe.rounds] == [1e-4, 1e-6]
    assert [each.mining.k for each in recipe.rounds] == [7, 7]
    assert recipe.network.pooling == "mac"


def test_times_repeats_a_round(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[rounds]]\ntimes = 3\nmethod = "A"\n')
    assert [each.method for each in load_recipe(file).rounds] == ["A", "A", "A"]
    file.write_text('[[rounds]]\ntimes = 1\nmethod = "A"\n')
    assert [each.method for each in load_recipe(file).rounds] == ["A"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("network.dimm=3", "unknown key network.dimm"),
        ("rounds.mining.kk=3", "unknown key rounds.0.mining.kk"),
        ("network.dim=wide", "network.dim = 'wide' is not possible; it takes a whole number"),
        ("rounds.method=E", 'takes "A" or "B"'),
        ("rounds.pool=2", "rounds.0.pool must be larger than neighbours (3)"),
        ("rounds.7.lr=1", "has 2 rounds"),
        ("rounds.lr", "key=value"),
        ("descriptor.size=4", "at least 16 pixels"),
        ("network.keep_start=0.5", "network.keep_start must be 0 where the fc starts at random"),
        ("network.keep_start=2", "network.keep_start must be a number from 0 to 1"),
    ],
)
def test_a_wrong_change_is_refused_with_its_key(change: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        load_recipe("paper-gldv2", (change,))
    assert message in str(raised.value)


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="paper-gldv2"):
        load_recipe("nothing")


def test_the_fingerprint_follows_the_settings_not_the_name() -> None:
    from dataclasses import replace

    recipe = Recipe()
    assert replace(recipe, name="other").fingerprint() == recipe.fingerprint()
    assert replace(recipe, seed=1).fingerprint() != recipe.fingerprint()

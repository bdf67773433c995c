"""Features of a collection by an engine: torch's, and never mixed with them."""

from pathlib import Path

import pytest
import torch

from insclr.data.images import Skipped, list_images
from insclr.data.loader import Collection, ViewSpec
from insclr.describe import collection_features
from insclr.methods.method import Needs
from insclr.model.network import DescriptorNetwork, LateLayers, create_network
from insclr.ranks import Ranks
from insclr.recipe import Recipe, load_recipe
from insclr.training import state
from insclr.training.state import RoundFeatures

_RECIPE = load_recipe("fast")
_ROUND = _RECIPE.rounds[0].with_(plain_size=64, augmented_size=64, cached_views=2, precision="fp32")


@pytest.fixture(scope="module")
def network() -> DescriptorNetwork:
    return create_network(_RECIPE.network)


def _features(folder: Path, cache: Path, engine: str, recipe: Recipe = _RECIPE) -> RoundFeatures:
    images = list_images(folder).subset(range(10))
    return RoundFeatures(recipe, Collection(images, 0, Skipped()), cache, Ranks(), engine)


@pytest.mark.parametrize("maps", [False, True], ids=["pooled", "maps"])
@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_an_engine_gives_the_features_of_torch(
    network: DescriptorNetwork, small_collection: Path, tmp_path: Path, engine: str, maps: bool
) -> None:
    by_engine, by_torch = (
        _features(small_collection, tmp_path, name)._read(network, _ROUND, 2, maps=maps)
        for name in (engine, "torch")
    )
    # Half precision: a component is off by at most one place, 2 ** -11 of itself.
    for found, expected in ((by_engine.plain, by_torch.plain), (by_engine.views, by_torch.views)):
        torch.testing.assert_close(found.float(), expected.float(), rtol=2**-10, atol=1e-4)
    # Each in a folder of its own: a run goes on with those that it began with.
    assert len(list(tmp_path.glob("maps-*" if maps else "features-*"))) == 2


def test_features_of_one_pooling_are_not_taken_for_those_of_another(
    small_collection: Path, tmp_path: Path
) -> None:
    pools = (("gem", 3.0), ("gem", 4.0), ("spoc", 3.0), ("mac", 3.0))
    found = []
    for name, p in pools:
        recipe = _RECIPE.with_(network=_RECIPE.network.with_(pooling=name, gem_p=p))
        features = _features(small_collection, tmp_path, "torch", recipe)
        found.append(features._read(create_network(recipe.network), _ROUND, 0, maps=False).plain)
    for i, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[:i])


@pytest.mark.parametrize("maps", [False, True], ids=["pooled", "maps"])
@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_short_numbers_give_nearly_the_same_features_and_are_kept_apart(
    network: DescriptorNetwork, small_collection: Path, tmp_path: Path, engine: str, maps: bool
) -> None:
    features = _features(small_collection, tmp_path, engine)
    short, single = (
        features._read(network, _ROUND.with_(precision=precision), 2, maps=maps)
        for precision in ("bf16", "fp32")
    )
    for found, expected in ((short.plain, single.plain), (short.views, single.views)):
        alike = torch.nn.functional.cosine_similarity(found.float(), expected.float(), dim=-1)
        assert float(alike.min()) > 0.97
    assert len(list(tmp_path.glob("maps-*" if maps else "features-*"))) == 2


def test_rounds_of_another_precision_do_not_share_features(
    network: DescriptorNetwork, small_collection: Path, tmp_path: Path
) -> None:
    late, needs = load_recipe("default").rounds[1], Needs(plain=False, augmented=2)
    late = late.with_(plain_size=64, augmented_size=64, cached_views=2)
    features = _features(small_collection, tmp_path, "torch")
    first, again, other = (
        features.pool_features(network, late.with_(precision=precision), needs)
        for precision in ("bf16", "bf16", "fp32")
    )
    assert first is again
    assert not torch.equal(again.plain, other.plain)


def test_late_layers_compute_in_short_numbers_and_learn_in_single_precision(
    network: DescriptorNetwork, small_collection: Path, tmp_path: Path
) -> None:
    maps = _features(small_collection, tmp_path, "torch").maps(network, _ROUND).plain
    short, single = (LateLayers(network, 64, floats).pool_features(maps) for floats in (torch.bfloat16, None))
    assert short.dtype == torch.float32
    assert not torch.equal(short, single)
    alike = torch.nn.functional.cosine_similarity(short.detach(), single.detach())
    assert float(alike.min()) > 0.99
    weights = network.backbone.late_parameters()[0]
    found, expected = (torch.autograd.grad(rows[:, :99].sum(), weights)[0] for rows in (short, single))
    assert found.dtype == torch.float32
    assert float(torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0)) > 0.9


def test_few_views_are_left_to_torch(
    network: DescriptorNetwork, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, views = _features(small_collection, tmp_path, "auto").stored, ViewSpec(64, 64, augmented=2)
    assert features._open_engine(network, views, maps=False, floats=None).name == "torch"
    monkeypatch.setattr(collection_features, "FEW_VIEWS", 30)  # 10 images, 3 views each
    engine = features._open_engine(network, views, maps=False, floats=None)
    assert engine.name in ("onnx", "openvino")


def test_features_of_many_maps_are_in_a_file_without_a_name(
    network: DescriptorNetwork, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, recipe = list_images(small_collection).subset(range(10)), load_recipe("default")
    recipe = recipe.model_copy(
        update={
            "rounds": tuple(
                each.with_(plain_size=64, augmented_size=64, cached_views=2) for each in recipe.rounds
            )
        }
    )
    needs = Needs(views=True)
    found = []
    for most in (10**9, 100):
        monkeypatch.setattr(state, "MAX_IN_MEMORY", most)
        features = RoundFeatures(recipe, Collection(images, 0, Skipped()), tmp_path, Ranks())
        found.append(features.pool_features(network, recipe.rounds[0], needs))
    assert torch.equal(found[0].plain, found[1].plain)
    assert torch.equal(found[0].views, found[1].views)
    assert found[0].views.abs().sum() > 0
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"maps"}


def test_maps_of_early_layers_that_were_trained_are_not_made(
    network: DescriptorNetwork, small_collection: Path, tmp_path: Path
) -> None:
    """No round of late layers comes after those of all layers: nobody would read them."""
    recipe = load_recipe(
        "default", ("rounds.plain_size=64", "rounds.augmented_size=64", "rounds.5.train=all")
    )
    images = list_images(small_collection).subset(range(6))
    for early, kind in (("", "maps"), ("of others", "features")):
        features = RoundFeatures(recipe, Collection(images, 0, Skipped()), tmp_path / kind, Ranks())
        features.expect_maps(network)
        features.early = early or features.early
        features.pool_features(network, recipe.rounds[-1], Needs(views=True))
        assert {path.name.split("-")[0] for path in (tmp_path / kind).iterdir()} == {kind}

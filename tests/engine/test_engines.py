"""Every engine gives what torch gives, or says why it cannot."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from insclr.data.images import list_images
from insclr.describe.map_features import map_pooling
from insclr.describe.pipeline import Request, describe_files, describe_images
from insclr.engine import choose
from insclr.engine.cache import EngineCache
from insclr.engine.choose import (
    OUTPUTS,
    CannotExport,
    EngineOptions,
    NetworkSource,
    open_engine,
    require_engine,
)
from insclr.engine.embedded_graph import embedded_graph
from insclr.engine.export import export_trunk
from insclr.engine.opened import OpenedModel, open_in_memory, open_model
from insclr.engine.torch_engine import TorchEngine
from insclr.errors import UserError
from insclr.model.backbones import FeatureMap
from insclr.model.model_file import Model, resolve_model, save_model, weights_of
from insclr.model.network import DescriptorNetwork, create_network
from insclr.model.stored import trunk_digest
from insclr.recipe import DescriptorRecipe, NetworkRecipe, Recipe
from insclr.store import Regions

_GRAPHS = ("onnx", "openvino")


@pytest.fixture(scope="module")
def model() -> Model:
    """The embedded backbone with a last layer and its bias."""
    torch.manual_seed(0)
    recipe = Recipe(network=NetworkRecipe(dim=24, bias=True))
    return Model(create_network(recipe.network), recipe, "0123456789abcdef")


def _opened(model: Model, engine: str, settings: DescriptorRecipe) -> OpenedModel:
    return open_in_memory(model, EngineOptions(engine), lambda _: settings)


@pytest.mark.parametrize(
    "settings",
    [
        DescriptorRecipe(size=64, fit="square", scales=(1.0,)),
        DescriptorRecipe(size=64, fit="square", scales=(1.0,), zoom=0.7),
        DescriptorRecipe(size=80, fit="longest", scales=(1.0, 0.7071)),
    ],
    ids=["one view", "two looks", "longest side, two scales"],
)
@pytest.mark.parametrize("engine", _GRAPHS)
def test_descriptors_are_those_of_torch(
    model: Model, small_collection: Path, settings: DescriptorRecipe, engine: str
) -> None:
    images = list_images(small_collection).subset(range(0, 48, 5))
    found = describe_images(_opened(model, engine, settings), images)
    expected = describe_images(_opened(model, "torch", settings), images)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("engine", _GRAPHS)
def test_regions_are_those_of_torch(model: Model, small_collection: Path, engine: str) -> None:
    images = list_images(small_collection).subset(range(0, 48, 16))
    settings = DescriptorRecipe(size=160, fit="square", zoom=0.7)
    found: dict[str, list[Regions]] = {}
    for name in (engine, "torch"):
        opened = _opened(model, name, settings)
        request = Request(settings, pooling=map_pooling(opened))
        found[name] = describe_files(opened.engine, images, request).regions
    assert len(found[engine]) == len(images)
    for one, other in zip(found[engine], found["torch"], strict=True):
        np.testing.assert_array_equal(one.boxes, other.boxes)
        np.testing.assert_allclose(one.descriptors, other.descriptors, rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ["torch", *_GRAPHS])
def test_one_pass_gives_map_pooled_features_and_descriptor(model: Model, engine: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 70, 90), dtype=np.uint8)
    opened = _opened(model, engine, DescriptorRecipe(size=64, fit="longest"))
    descriptor, maps, pooled = opened.engine.run(images, ("descriptor", "map", "pooled"))
    with torch.no_grad():
        seen = model.network.backbone(torch.from_numpy(images))
        expected = model.network.pool(seen)
    np.testing.assert_allclose(maps, seen.map.numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(pooled, expected.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(descriptor, model.network.head(expected).detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", _GRAPHS)
def test_threads_may_share_an_engine(model: Model, small_collection: Path, engine: str) -> None:
    opened = _opened(model, engine, DescriptorRecipe(size=48, fit="square"))
    images = list_images(small_collection)
    np.testing.assert_array_equal(
        describe_images(opened, images, workers=3), describe_images(opened, images, workers=0)
    )


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "vit_small_patch14_reg4_dinov2",
        "vit_small_patch16_dinov3",
        "vit_pe_core_tiny_patch16_384",
        "eva02_tiny_patch14_224",
    ],
)
def test_a_transformer_is_exported_for_images_of_any_size(name: str) -> None:
    torch.manual_seed(0)
    network = create_network(NetworkRecipe(backbone=name, dim=16), pretrained=False)
    for kind in ("early", "trunk"):
        _, channels = export_trunk(network, kind, 64)  # verified at 64 x 64 and at 73 x 49 pixels
    assert channels == network.backbone.channels


def test_a_network_without_a_graph_is_left_to_torch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    network = create_network(NetworkRecipe(backbone="levit_128s", dim=16), pretrained=False)
    with pytest.raises(CannotExport, match="cannot be expressed"):
        export_trunk(network, "trunk", 96)
    assert capfd.readouterr() == ("", "")
    source, cache = NetworkSource("levit", lambda: network), EngineCache(tmp_path)
    for _ in range(2):  # the second time the refusal comes from the cache
        engine = open_engine(source, size=96, cache=cache)
        assert engine.name == "torch"
    assert caplog.text.count("torch describes instead") == 2
    with pytest.raises(UserError, match="cannot be expressed"):
        open_engine(source, size=96, options=EngineOptions("onnx"), cache=cache)
    with pytest.raises(UserError, match=r"cannot take images of 96 x 96 pixels: choose --size 224"):
        engine.run(np.zeros((1, 3, 96, 96), np.uint8))


def test_for_a_few_images_the_engine_is_the_one_that_starts_sooner(model: Model) -> None:
    names = [open_in_memory(model, EngineOptions(expected=count)).engine.name for count in (1, 8, 9, 0)]
    assert names == ["onnx", "onnx", "openvino", "openvino"]


def _with_forward(network: DescriptorNetwork, forward: Callable[[Tensor], FeatureMap]) -> DescriptorNetwork:
    network.backbone.forward = forward  # type: ignore[assignment, method-assign]
    return network


def test_a_network_that_branches_on_its_input_is_left_to_torch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = create_network(NetworkRecipe(dim=0), pretrained=False)
    plain = network.backbone.forward

    def branching(images: Tensor) -> FeatureMap:
        seen = plain(images)
        return seen if float(images.mean()) > 100 else FeatureMap(seen.map.flip(1), None)

    source = NetworkSource("branching", lambda: _with_forward(network, branching))
    engine = open_engine(source, size=64, cache=EngineCache(tmp_path))
    assert engine.name == "torch"
    assert "is not that of torch" in caplog.text


def test_the_last_layer_is_not_in_a_graph(model: Model) -> None:
    """So that models which differ in it alone share one."""
    weights = weights_of(model.network.state_dict())
    other = weights | {"fc.weight": weights["fc.weight"] + 1}
    assert trunk_digest(model.recipe.network, weights) == trunk_digest(model.recipe.network, other)
    trunk = next(name for name in weights if name.startswith("backbone"))
    changed = weights | {trunk: weights[trunk] + 1}
    assert trunk_digest(model.recipe.network, weights) != trunk_digest(model.recipe.network, changed)
    assert trunk_digest(model.recipe.network.with_(gem_p=2.0), weights) != trunk_digest(
        model.recipe.network, weights
    )


def test_a_missing_engine_is_reported_or_skipped(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="There is no engine 'tpu'"):
        require_engine("tpu", "auto")
    with pytest.raises(UserError, match="There is no device 'tpu'"):
        require_engine("auto", "tpu")
    with pytest.raises(UserError, match="runs on the CPU"):
        require_engine("onnx", "cuda")
    monkeypatch.setattr(choose, "find_spec", lambda name: None if name == "openvino" else name)
    with pytest.raises(UserError, match=r"openvino is not installed: pip install 'insclr\[openvino\]'"):
        require_engine("openvino", "auto")
    assert _opened(model, "auto", DescriptorRecipe(size=64)).engine.name == "onnx"


def test_an_engine_of_another_version_that_does_not_start_is_passed_over(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = choose.start_engine

    def start(name: Any, *rest: Any) -> Any:
        if name == "openvino":
            raise RuntimeError("symbol lookup error\nand more")
        return real(name, *rest)

    monkeypatch.setattr(choose, "start_engine", start)
    assert _opened(model, "auto", DescriptorRecipe(size=64)).engine.name == "onnx"
    assert "the engine openvino does not start (symbol lookup error)" in caplog.text
    with pytest.raises(UserError, match="openvino does not start"):
        _opened(model, "openvino", DescriptorRecipe(size=64))


def test_a_model_file_is_opened_as_its_network_in_memory(model: Model, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    fingerprint = save_model(file, model.network, model.recipe)
    images = np.random.default_rng(1).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)
    with torch.no_grad():
        expected = model.network(torch.from_numpy(images)).numpy()
    for engine in ("auto", "torch"):
        opened = open_model(str(file), EngineOptions(engine))
        assert opened.fingerprint == fingerprint
        np.testing.assert_allclose(opened.engine.run(images)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "recipe",
    [
        NetworkRecipe(dim=0),
        NetworkRecipe(dim=8, pooling="mac", normalise_pooled=False),
        NetworkRecipe(dim=8, pooling="spoc"),
        NetworkRecipe(dim=8, gem_p=2.0),
    ],
    ids=lambda recipe: recipe.pooling,
)
def test_the_graph_of_the_embedded_network_is_made_without_torch(recipe: NetworkRecipe) -> None:
    network = create_network(recipe).eval()
    weights = weights_of(network.state_dict())
    for size in ((64, 64), (225, 96), (49, 73)):
        images = torch.randint(0, 256, (2, 3, *size), generator=torch.Generator().manual_seed(0)).float()
        with torch.no_grad():
            seen = network.backbone(images)
            expected = {"trunk": [seen.map, network.pool(seen)], "early": [network.backbone.early(images)]}
        for kind, of_torch in expected.items():
            content, channels = embedded_graph(recipe, weights, kind)  # type: ignore[arg-type]
            session = onnxruntime.InferenceSession(content)
            for name, wanted in zip(OUTPUTS[kind], of_torch, strict=True):  # type: ignore[index]
                (found,) = session.run([name], {"images": images.numpy()})
                largest = float(wanted.abs().max())
                np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-5 * max(1.0, largest))
            assert channels == of_torch[-1].shape[1]


def test_the_embedded_network_is_that_of_torch() -> None:
    name = "pretrained:efficientnet_lite0"
    opened, pretrained = open_model(name), resolve_model(name)
    assert opened.fingerprint == pretrained.fingerprint
    images = np.random.default_rng(1).integers(0, 256, (1, 3, 64, 64), dtype=np.uint8)
    expected = TorchEngine(pretrained.network).run(images)[0]
    np.testing.assert_allclose(opened.engine.run(images)[0], expected, atol=1e-5)

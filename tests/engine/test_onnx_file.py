"""`insclr export`: a file that other programs can use, verified before it is written."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from insclr.data.images import list_images
from insclr.engine.onnx_file import write_onnx
from insclr.errors import UserError
from insclr.model.model_file import Model
from insclr.model.network import create_network
from insclr.recipe import DescriptorRecipe, NetworkRecipe, Recipe


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    recipe = Recipe(network=NetworkRecipe(dim=16), descriptor=DescriptorRecipe(size=64, fit="square"))
    return Model(create_network(recipe.network), recipe, "0123456789abcdef")


@pytest.mark.parametrize(("precision", "cosine"), [("fp32", 0.99999), ("fp16", 0.999), ("int8", 0.3)])
def test_an_exported_model_describes_images_of_any_size(
    model: Model, small_collection: Path, tmp_path: Path, precision: str, cosine: float
) -> None:
    out = tmp_path / "model.onnx"
    photos = list_images(small_collection).subset(range(12))
    said = write_onnx(model, out, precision=precision, photos=photos)  # type: ignore[arg-type]
    assert said.least_cosine > cosine
    assert f"{precision}, images of any size, opset 17" in str(said)
    session = onnxruntime.InferenceSession(out)
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 80, 50)).astype(np.float32)
    (descriptor,) = session.run(["descriptor"], {"images": images})
    np.testing.assert_allclose(np.linalg.norm(descriptor, axis=1), 1, atol=1e-3)
    if precision == "fp32":
        with torch.no_grad():
            expected = model.network(torch.from_numpy(images)).numpy()
        np.testing.assert_allclose(descriptor, expected, rtol=0, atol=1e-5)


def test_the_file_describes_itself(model: Model, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    assert "drawn test images" in str(write_onnx(model, out))
    graph = onnx.load(out)
    onnx.checker.check_model(graph)
    props = {one.key: one.value for one in graph.metadata_props}
    assert (props["insclr.model"], props["insclr.size"]) == (model.fingerprint, "64")
    assert graph.opset_import[0].version == 17
    assert {one.name for one in graph.graph.output} == {"map", "pooled", "descriptor"}


def test_int8_needs_photos_that_can_be_read(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--photos"):
        write_onnx(model, tmp_path / "model.onnx", precision="int8")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"no photo")
    with pytest.raises(UserError, match="none of the 1 photos"):
        write_onnx(model, tmp_path / "model.onnx", precision="int8", photos=list_images(tmp_path / "photos"))
    assert not (tmp_path / "model.onnx").exists()


def test_a_model_that_no_graph_expresses_is_reported(tmp_path: Path) -> None:
    recipe = Recipe(
        network=NetworkRecipe(backbone="vit_tiny_patch16_224", dim=8),
        descriptor=DescriptorRecipe(size=96, fit="square"),
    )
    vit = Model(create_network(recipe.network, pretrained=False), recipe, "0")
    with pytest.raises(UserError, match="vit_tiny_patch16_224 cannot be expressed as a graph"):
        write_onnx(vit, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()

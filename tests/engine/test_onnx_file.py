"""`insclr export`: a file that other programs can use, verified before it is written."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

import insclr
from insclr.data.images import list_images
from insclr.engine.onnx_file import write_onnx
from insclr.errors import UserError
from insclr.model.model_file import Model, save_model
from insclr.model.network import create_network
from insclr.recipe import DescriptorRecipe, NetworkRecipe, Recipe


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    recipe = Recipe(network=NetworkRecipe(dim=16), descriptor=DescriptorRecipe(size=64, fit="square"))
    return Model(create_network(recipe.network), recipe, "0123456789abcdef")


@pytest.mark.parametrize("fit", ["square", "longest"])
def test_the_snippet_of_the_documentation_gives_the_vectors_of_embed(
    model: Model, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit: str
) -> None:
    """With two views, at two scales, of a photo that is turned by its EXIF tag and larger than the network's size."""
    settings = DescriptorRecipe(size=96, fit=fit, zoom=0.7, scales=(1.0, 0.707))  # type: ignore[arg-type]
    model = replace(model, recipe=model.recipe.with_(descriptor=settings))
    (tmp_path / "PHOTOS").mkdir()
    with Image.open(sorted(small_collection.glob("*.png"))[0]) as photo:
        exif = Image.Exif()
        exif[0x0112] = 6
        photo.convert("RGB").resize((600, 401)).save(
            tmp_path / "PHOTOS" / "thing3-1.png", "JPEG", quality=95, exif=exif
        )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").mkdir()
    save_model("RUN/model.safetensors", model.network, model.recipe)
    page = (Path(__file__).parents[2] / "docs" / "sharing.md").read_text()
    (snippet,) = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "onnxruntime" in one]
    found: dict[str, Any] = {"insclr": insclr}
    exec(compile(snippet, "docs/sharing.md", "exec"), found)
    expected = insclr.embed("RUN", "PHOTOS/thing3-1.png").vectors
    assert float((found["descriptor"] * expected).sum()) >= 0.9999


def test_an_exported_model_describes_images_of_any_size(
    model: Model, small_collection: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model.onnx"
    said = write_onnx(model, out, photos=list_images(small_collection).subset(range(12)))
    assert said.least_cosine > 0.99999
    assert "images of any size, opset 17" in str(said)
    session = onnxruntime.InferenceSession(out)
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 80, 50)).astype(np.float32)
    (descriptor,) = session.run(["descriptor"], {"images": images})
    np.testing.assert_allclose(np.linalg.norm(descriptor, axis=1), 1, atol=1e-3)


def test_the_file_describes_itself(model: Model, tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    assert "drawn test images" in str(write_onnx(model, out))
    graph = onnx.load(out)
    onnx.checker.check_model(graph)
    props = {one.key: one.value for one in graph.metadata_props}
    assert (props["insclr.model"], props["insclr.size"]) == (model.fingerprint, "64")
    assert graph.opset_import[0].version == 17
    assert {one.name for one in graph.graph.output} == {"map", "pooled", "descriptor"}


def test_another_kind_of_file_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.onnx"):
        write_onnx(model, tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


def test_photos_to_verify_on_must_be_readable(model: Model, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"no photo")
    with pytest.raises(UserError, match="none of the 1 photos"):
        write_onnx(model, tmp_path / "model.onnx", photos=list_images(tmp_path / "photos"))
    assert not (tmp_path / "model.onnx").exists()


def test_a_model_that_no_graph_expresses_is_reported(tmp_path: Path) -> None:
    recipe = Recipe(
        network=NetworkRecipe(backbone="levit_128s", dim=8),
        descriptor=DescriptorRecipe(size=96, fit="square"),
    )
    vit = Model(create_network(recipe.network, pretrained=False), recipe, "0")
    with pytest.raises(UserError, match="levit_128s cannot be expressed as a graph"):
        write_onnx(vit, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()

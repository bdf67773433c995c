"""The whole way with a real network: index a folder, search it by files, boxes and folders."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from insclr.data.decode import decode
from insclr.data.images import ImageList, list_images
from insclr.data.skipped import Skipped
from insclr.engine.torch_engine import TorchEngine
from insclr.errors import UserError
from insclr.model.model_file import resolve_model
from insclr.recipe import DescriptorRecipe
from insclr.retrieval.describe import describe_with
from insclr.retrieval.describer import ModelDescriber, describer_of
from insclr.retrieval.index import index_images
from insclr.retrieval.search import Search, search_files
from insclr.retrieval.store import StoreInfo, open_store
from insclr.web.server import open_served

NAME = "pretrained:efficientnet_lite0"


@pytest.fixture(scope="module")
def store(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexed") / "store"
    describer = ModelDescriber(NAME, resolve_model(NAME), workers=0)
    report = index_images(describer, list_images(small_collection / "labels.csv"), folder)
    assert report.added == report.total == 48
    return folder


def test_a_photo_finds_its_thing(store: Path, small_collection: Path) -> None:
    (found,) = search_files(store, small_collection / "thing3-1.png", Search(top=4))
    assert found.matches[0].path == "thing3-1.png"
    assert found.matches[0].similarity == pytest.approx(1, abs=0.01)
    assert found.matches[0].columns == {"instance": "thing3"}
    similarities = [match.similarity for match in found.matches]
    assert similarities == sorted(similarities, reverse=True)
    assert found.table().splitlines()[0].split() == ["score", "cosine", "path"]
    assert "thing3-1.png" in found.table()


def test_a_box_finds_the_thing_inside(store: Path, small_collection: Path, tmp_path: Path) -> None:
    both = Image.new("RGB", (200, 100))
    both.paste(Image.open(small_collection / "thing5-0.png"), (0, 0))
    both.paste(Image.open(small_collection / "thing7-0.png"), (100, 0))
    both.save(tmp_path / "both.png")
    (found,) = search_files(store, tmp_path / "both.png", Search(top=1), box=(100, 0, 196, 96))
    assert found.matches[0].path == "thing7-0.png"
    with pytest.raises(UserError, match="no part of the image"):
        list(search_files(store, tmp_path / "both.png", Search(), box=(300, 0, 400, 10)))


def test_a_folder_of_queries_gives_a_json_line_each(
    store: Path, small_collection: Path, tmp_path: Path
) -> None:
    for name in ("thing1-0.png", "thing2-0.png"):
        shutil.copy(small_collection / name, tmp_path)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    lines = [json.loads(json.dumps(one.to_json())) for one in search_files(store, tmp_path, Search(top=2))]
    assert [line["query"] for line in lines] == ["bad.png", "thing1-0.png", "thing2-0.png"]
    assert "error" in lines[0]
    assert [line["matches"][0]["path"] for line in lines[1:]] == ["thing1-0.png", "thing2-0.png"]
    assert lines[1]["matches"][0]["columns"] == {"instance": "thing1"}


def test_mistakes_are_told(store: Path, small_collection: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    photo = small_collection / "thing1-0.png"
    for arguments, message in (
        ((store, tmp_path / "bad.png", Search()), "cannot be searched for"),
        ((store, tmp_path / "nowhere.png", Search()), "does not exist"),
        ((tmp_path / "no-store", photo, Search()), "no store at"),
        ((store, photo, Search(where="colour = red")), "no column"),
        ((store, photo, Search(rerank="magic")), "re-ranker"),
    ):
        with pytest.raises(UserError, match=message):
            list(search_files(*arguments))


def test_a_query_needs_the_store_s_own_model(store: Path) -> None:
    info = open_store(store).info
    assert info.model == NAME
    other = StoreInfo(info.model, "0" * 16, info.dim, info.root)
    with pytest.raises(UserError, match="another model"):
        describer_of(other)


def test_queries_are_described_on_the_device_that_is_named(store: Path, small_collection: Path) -> None:
    photo = small_collection / "thing3-1.png"
    (found,) = search_files(store, photo, Search(top=1), device="cpu")
    assert found.matches[0].path == "thing3-1.png"
    with pytest.raises(UserError, match="no device 'gpu'"):
        list(search_files(store, photo, Search(top=1), device="gpu"))
    with pytest.raises(UserError, match="no device 'gpu'"):
        open_served([store], device="gpu")


@pytest.mark.parametrize(
    "settings",
    [
        DescriptorRecipe(size=64, fit="square", scales=(1.0,), zoom=0.7),
        DescriptorRecipe(size=80, fit="longest", scales=(1.5, 1.0, 0.7), zoom=0.0),
    ],
    ids=["shipped", "public"],
)
def test_files_and_images_in_memory_get_the_same_descriptors(
    settings: DescriptorRecipe, small_collection: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    # A large JPEG, which is decoded at a fraction of its size where that suffices.
    Image.open(small_collection / "thing3-1.png").resize((900, 600)).save(tmp_path / "large.jpg")
    images = ImageList(small_collection, (str(tmp_path / "large.jpg"), "thing1-0.png"))
    model = resolve_model(NAME)
    model = replace(model, recipe=model.recipe.with_(descriptor=settings))
    describer, engine = ModelDescriber(NAME, model, workers=0), TorchEngine(model.network)
    for boxes in ([None, None], [(100, 50, 500, 450), (10, 10, 60, 70)]):
        files = describe_with(engine, images, **settings.model_dump(), boxes=boxes, workers=0)
        longest = None if boxes[0] else describer.longest
        decoded = [decode(images.file(i), longest) for i in range(2)]
        np.testing.assert_allclose(describer.images(decoded, boxes), files, atol=1e-5)
        if boxes[0] is None:
            np.testing.assert_allclose(describer.files(images, Skipped())[0], files, atol=1e-5)

"""The Python interface: every example in its documentation, what embed takes, and that it costs nothing to import."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import insclr
from insclr.errors import UserError

_FUNCTIONS = (
    *("check", "train", "load", "embed", "index", "search", "duplicates", "cluster"),
    *(
        "evaluate",
        "compare",
        "whiten",
        "names",
        "answers",
        "learn",
        "models",
        "calibrate",
        "export",
        "push",
        "pull",
    ),
)
_DOCS = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture(scope="module")
def place(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with PHOTOS, and all that the page on the interface makes of them."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "PHOTOS").mkdir()
    labels = (small_collection / "labels.csv").read_text().splitlines(keepends=True)[: 1 + 24]
    (folder / "PHOTOS" / "labels.csv").write_text("".join(labels))
    (folder / "names.csv").write_text("path,name\nthing3-1.png,Blue vase\n")
    (folder / "pairs.csv").write_text(
        "one,other,same\nthing3-1.png,thing3-2.png,yes\nthing3-1.png,thing1-0.png,no\n"
    )
    for line in labels[1:]:
        name = line.split(",")[0]
        (folder / "PHOTOS" / name).symlink_to(small_collection / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names: dict[str, object] = {}
        for block in re.findall(r"```python\n(.*?)```", _DOCS.read_text(), re.DOTALL):
            exec(compile(block, "docs/python.md", "exec"), names)
    assert names["matches"][0].path == "thing3-1.png"  # type: ignore[index]
    return folder


# That of `pull` needs a hub: tests/sharing/test_hub.py runs it.
@pytest.mark.parametrize("name", [name for name in _FUNCTIONS if name not in ("train", "learn", "pull")])
def test_the_example_of_each_function_is_true(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (example,) = doctest.DocTestFinder().find(getattr(insclr, name), name, globs={"insclr": insclr})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("name", ["train", "learn"])
def test_what_takes_long_has_the_example_of_the_page(name: str, place: Path) -> None:
    """It is run there already: here only that it gave what it says."""
    (example,) = doctest.DocTestFinder().find(getattr(insclr, name), name, globs={"insclr": insclr})
    assert example.examples[0].source.strip() in re.sub(r" +#.*", "", _DOCS.read_text())
    assert insclr.load(place / "RUN").network.dim == 512
    assert insclr.search(place / "LEARNED" / "store", place / "PHOTOS" / "thing3-1.png")


def test_dir_shows_the_whole_interface() -> None:
    assert set(_FUNCTIONS) <= set(dir(insclr))
    for name in dir(insclr):
        assert getattr(insclr, name) is not None
        assert name.startswith("__") or getattr(insclr, name).__doc__


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import insclr, sys; dir(insclr); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numpy", "PIL", "faiss"} & set(loaded)


def test_embed_takes_paths_folders_and_images_alike(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    model = insclr.load("RUN")
    whole = insclr.embed(model, "PHOTOS")
    assert np.allclose(np.linalg.norm(whole.vectors, axis=1), 1, atol=1e-5)
    wanted = whole.vectors[whole.paths.index("thing3-1.png")]
    file = Path("PHOTOS/thing3-1.png")
    image = Image.open(file)
    for given in (file, str(file), [file], image, [image], np.asarray(image), [np.asarray(image)]):
        found = insclr.embed(model, given)
        assert (found.vectors.shape, len(found), found.unreadable) == ((1, 512), 1, ())
        assert np.allclose(found.vectors[0], wanted, atol=1e-4)
    assert insclr.embed("RUN", [file, "PHOTOS/thing0-0.png"]).paths == (str(file), "PHOTOS/thing0-0.png")  # type: ignore[arg-type]


def test_embed_has_no_row_for_what_cannot_be_read(place: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    good = place / "PHOTOS" / "thing0-0.png"
    found = insclr.embed(place / "RUN", [tmp_path / "broken.jpg", good, tmp_path / "gone.jpg"])
    assert (found.paths, found.vectors.shape) == ((str(good),), (1, 512))
    assert [path for path, _ in found.unreadable] == [
        str(tmp_path / "broken.jpg"),
        str(tmp_path / "gone.jpg"),
    ]
    assert found.unreadable[0][1].startswith("not an image")


def test_parts_of_images_are_indexed_searched_and_measured(place: Path, tmp_path: Path) -> None:
    photos, query = place / "PHOTOS", place / "PHOTOS" / "thing3-1.png"
    insclr.index(place / "RUN", photos, tmp_path / "store", regions=True, local="on", size=224)
    for given in (query, [query, Image.open(query)]):
        first = insclr.search(tmp_path / "store", given, top=4, local="on")[0]  # type: ignore[arg-type]
        assert first.path == query.name
        assert (bool(first.inliers), first.box is not None) == (True, True)
        regions = insclr.search(tmp_path / "store", given, top=4, ranking="regions")  # type: ignore[arg-type]
        assert sum(not match.is_query for match in regions) == 4
        assert all(match.box is not None for match in regions)
    plain = insclr.evaluate(place / "RUN", photos / "labels.csv")
    for asked in ({"local": "on"}, {"ranking": "regions", "region_size": 224}):
        result = insclr.evaluate(place / "RUN", photos / "labels.csv", **asked)
        # The score is that of whole images, whatever the order: only that of a region is another one.
        measured = None if asked.get("ranking") == "regions" else plain.calibration  # type: ignore[union-attr]
        assert (result.calibration, result.map > 0) == (measured, True)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="--labels CSV"):
        insclr.evaluate(place / "RUN", protocol="instre", root=tmp_path, ranking="regions")


def test_what_a_folder_holds_besides_is_counted(place: Path, tmp_path: Path) -> None:
    for name in ("thing0-0.png", "thing0-1.png"):
        (tmp_path / name).symlink_to(place / "PHOTOS" / name)
    (tmp_path / "drawing.psd").write_bytes(b"x")
    found = insclr.embed(place / "RUN", tmp_path)
    indexed = insclr.index(place / "RUN", tmp_path, place / "STORE2")
    assert found.not_read == indexed.not_read == insclr.check(tmp_path).not_read == {".psd picture": 1}


def test_a_loaded_model_is_opened_once_and_described_by_the_engine_that_was_named(place: Path) -> None:
    photo = place / "PHOTOS" / "thing3-1.png"
    vectors = {}
    for engine in ("torch", "onnx", "openvino"):
        model = insclr.load(place / "RUN", engine=engine)
        assert model.engine.name == engine
        assert insclr.load(model) is model
        vectors[engine] = insclr.embed(model, photo).vectors
    np.testing.assert_allclose(vectors["onnx"], vectors["torch"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(vectors["openvino"], vectors["torch"], rtol=0, atol=1e-5)
    changed = insclr.load(model, size=96, engine="onnx")
    assert (changed.engine.name, changed.recipe.descriptor.size) == ("onnx", 96)
    assert changed.fingerprint == model.fingerprint
    with pytest.raises(UserError, match="no engine 'tpu'"):
        insclr.search(place / "STORE", photo, engine="tpu")


def test_whitening_leaves_the_model_that_it_is_given_as_it_is(place: Path, tmp_path: Path) -> None:
    model = insclr.load(place / "RUN")
    white = insclr.whiten(model, place / "PHOTOS", tmp_path / "white.safetensors", dim=8)
    assert (white.network.dim, model.network.dim) == (8, 512)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([], "No images were given"),
        (np.zeros((4, 4, 3), np.float32), "give uint8"),
        (np.zeros((3, 4, 9), np.uint8), "give uint8"),
        (["a.jpg", Image.new("RGB", (4, 4))], "either paths or images"),
        (["caf\udce9.jpg"], "not UTF-8"),
        ("nowhere", "does not exist"),
    ],
)
def test_embed_refuses_what_it_cannot_take(place: Path, given: object, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        insclr.embed(place / "RUN", given)  # type: ignore[arg-type]


def test_several_photos_are_searched_for_as_one_thing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    pictures = [Image.open(f"PHOTOS/thing5-{view}.png") for view in range(2)]
    paths = {match.path for match in insclr.search("STORE", pictures, top=2)}
    assert paths == {"thing5-0.png", "thing5-1.png"}
    with pytest.raises(UserError, match=r"gone.png cannot be searched for: file not found"):
        insclr.search("STORE", "gone.png")

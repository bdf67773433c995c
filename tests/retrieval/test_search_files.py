"""The whole way with a real network: index a folder, search it by files, boxes and folders."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import insclr
from helpers.called import call
from insclr.data.decode import decode
from insclr.data.images import ImageList, Skipped, list_images
from insclr.describe.describer import Describer
from insclr.describe.pipeline import Request, describe_files
from insclr.engine.torch_engine import TorchEngine
from insclr.errors import UserError
from insclr.model.model_file import resolve_model
from insclr.options import SearchOptions
from insclr.recipe import DescriptorRecipe
from insclr.retrieval.index import index_images
from insclr.retrieval.query import describer_of
from insclr.retrieval.rerank import RERANKERS
from insclr.retrieval.search import search_files
from insclr.store import StoreInfo, open_store
from insclr.web.server import open_served

NAME = "pretrained:efficientnet_lite0"


@pytest.fixture(scope="module")
def store(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexed") / "store"
    describer = Describer(NAME, resolve_model(NAME), workers=0)
    report = index_images(describer, list_images(small_collection / "labels.csv"), folder)
    assert report.added == report.total == 48
    return folder


def test_a_photo_finds_its_thing(store: Path, small_collection: Path) -> None:
    (found,) = search_files(store, small_collection / "thing3-1.png", SearchOptions(top=4))
    assert found.matches[0].path == "thing3-1.png"
    assert found.matches[0].similarity == pytest.approx(1, abs=0.01)
    assert found.matches[0].columns == {"instance": "thing3"}
    scores = [match.score for match in found.matches]
    assert scores == sorted(scores, reverse=True)
    head, first, *others = found.table().splitlines()
    assert head.split() == ["score", "cosine", "band", "path"]
    assert first.split()[2:4] == ["query", "thing3-1.png"]
    # The photo itself is marked and not counted.
    assert [match.is_query for match in found.matches] == [True, False, False, False, False]
    assert len(others) == 4


def test_a_box_finds_the_thing_inside(store: Path, small_collection: Path, tmp_path: Path) -> None:
    both = Image.new("RGB", (200, 100))
    both.paste(Image.open(small_collection / "thing5-0.png"), (0, 0))
    both.paste(Image.open(small_collection / "thing7-0.png"), (100, 0))
    both.save(tmp_path / "both.png")
    (found,) = search_files(store, tmp_path / "both.png", SearchOptions(top=1), box=(100, 0, 196, 96))
    assert found.matches[0].path == "thing7-0.png"
    with pytest.raises(UserError, match="no part of the image"):
        list(search_files(store, tmp_path / "both.png", SearchOptions(), box=(300, 0, 400, 10)))


def test_a_folder_of_queries_gives_a_json_line_each(
    store: Path, small_collection: Path, tmp_path: Path
) -> None:
    for name in ("thing1-0.png", "thing2-0.png"):
        shutil.copy(small_collection / name, tmp_path)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    lines = [
        json.loads(json.dumps(one.to_json())) for one in search_files(store, tmp_path, SearchOptions(top=2))
    ]
    assert [line["query"] for line in lines] == ["bad.png", "thing1-0.png", "thing2-0.png"]
    assert "error" in lines[0]
    assert [line["matches"][0]["path"] for line in lines[1:]] == ["thing1-0.png", "thing2-0.png"]
    assert lines[1]["matches"][0]["columns"] == {"instance": "thing1"}


def test_the_interface_marks_the_query_itself_besides_the_others(store: Path, small_collection: Path) -> None:
    photo = small_collection / "thing3-1.png"
    matches = insclr.search(store, photo, top=2)
    assert [one.path for one in matches if one.is_query] == ["thing3-1.png"]
    assert len(matches) == 3
    part = insclr.search(store, photo, top=2, box=(0, 0, 64, 64))
    assert (len(part), any(one.is_query for one in part)) == (2, False)


def test_the_command_gives_a_json_line_for_each_photo_of_a_list(
    store: Path, small_collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    (tmp_path / "list.txt").write_text(f"bad.png\n{small_collection / 'thing1-0.png'}\n")
    status, said = _answer(capsys, "search", store, tmp_path / "list.txt", "--top", "1")
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert status == 0
    assert [line["query"] for line in lines] == ["bad.png", str(small_collection / "thing1-0.png")]
    assert "error" in lines[0]


def test_mistakes_are_reported(store: Path, small_collection: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    photo = small_collection / "thing1-0.png"
    for arguments, message in (
        ((store, tmp_path / "bad.png", SearchOptions()), "cannot be searched for"),
        ((store, tmp_path / "nowhere.png", SearchOptions()), "does not exist"),
        ((tmp_path / "no-store", photo, SearchOptions()), "no store at"),
        ((store, photo, SearchOptions(where="colour = red")), "no column"),
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
    (found,) = search_files(store, photo, SearchOptions(top=1, device="cpu"))
    assert found.matches[0].path == "thing3-1.png"
    with pytest.raises(UserError, match="no device 'gpu'"):
        list(search_files(store, photo, SearchOptions(top=1, device="gpu")))
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
    describer, engine = Describer(NAME, model, workers=0), TorchEngine(model.network)
    for boxes in ([None, None], [(100, 50, 500, 450), (10, 10, 60, 70)]):
        files = describe_files(engine, images, Request(settings), boxes=boxes, workers=0).descriptors
        longest = None if boxes[0] else describer.longest
        decoded = [decode(images.file(i), longest) for i in range(2)]
        np.testing.assert_allclose(describer.images(decoded, boxes), files, atol=1e-5)
        if boxes[0] is None:
            np.testing.assert_allclose(describer.files(images, Skipped()).descriptors, files, atol=1e-5)


def _answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    status, shown, said = call(capsys, *arguments)
    return status, shown + said


def test_a_store_is_calibrated_from_a_column_or_from_answers(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(store, tmp_path / "store")
    status, said = _answer(capsys, "calibrate", copy, "--column", "instance")
    assert status == 0
    assert "48 answered pairs" in said
    answers = tmp_path / "answers.csv"
    answers.write_text("one,other,same\nthing3-0.png,thing3-1.png,yes\nthing3-0.png,thing5-1.png,no\n")
    assert "2 answered pairs" in _answer(capsys, "calibrate", copy, "--answers", answers)[1]
    assert "without labels" in _answer(capsys, "calibrate", copy)[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "columns one, other, same"),
        ("one,other,same\ncaf\udce9.png,thing3-1.png,yes\n", "UTF-8"),
        ('one,other,same\n"thing3-0.png', "line 2: malformed CSV"),
        ("one,other,same\nthing3-0.png,thing3-1.png,perhaps\n", "line 2: same must be yes or no"),
        ("one,other,same\nthing3-0.png,nowhere.png,yes\n", r"line 2: nowhere.png is not in"),
    ],
)
def test_invalid_answers_are_reported(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "answers.csv").write_text(content, errors="surrogateescape")
    status, said = _answer(capsys, "calibrate", store, "--answers", tmp_path / "answers.csv")
    assert (status, message in said) == (2, True)
    status, said = _answer(capsys, "calibrate", store, "--column", "colour")
    assert (status, "it has: instance" in said) == (2, True)


def test_evaluate_reports_the_score_of_a_small_collection(
    small_collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = tmp_path / "numbers.json"
    options = ("--labels", small_collection / "labels.csv", "--json", numbers)
    status, said = _answer(capsys, "evaluate", NAME, *options)
    assert status == 0
    assert "expected calibration error" in said
    values = json.loads(numbers.read_text())
    assert 0 <= values["ece"] <= 0.2
    assert values["with_200_answers"]["ece"] <= 0.08
    assert values["line_f1"] <= values["best_f1"] <= 100


def test_the_help_describes_every_re_ranker(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("search", "evaluate"):
        said = _answer(capsys, command, "--help")[1]
        assert all(f"{name}:" in said for name in RERANKERS)

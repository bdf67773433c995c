"""Parsers of what users and strangers write: whatever comes, a result or a UserError."""

import contextlib
import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from insclr.data.images import list_images
from insclr.data.labels import read_labels
from insclr.errors import UserError
from insclr.model.model_file import load_model, save_model
from insclr.model.stored import digest
from insclr.recipe import NetworkRecipe, Recipe, load_recipe, recipe_names, to_toml
from insclr.run_folder import RunFolder, RunReader, kept_answers
from insclr.store.store_models import read_models
from insclr.store.where import meets, parse_where, to_milvus
from insclr_rivals.safe_pickle import load_pickle

Note = Callable[[str, str, str], None]
Try = Callable[[object], None]
_WORDS = [
    "and",
    "or",
    "not",
    "in",
    "contains",
    "(",
    ")",
    ",",
    "=",
    "!=",
    "<=",
    "'a'",
    '"',
    "year",
    "path",
    "1e9",
    "'",
]


@pytest.fixture
def fuzz(soak: bool, note: Note) -> Callable[[str, st.SearchStrategy[object], Try], None]:
    def run(what: str, inputs: st.SearchStrategy[object], attempt: Try) -> None:
        tried = 0
        end = time.monotonic() + float(os.environ.get("INSCLR_FUZZ_SECONDS") or (600 if soak else 10))

        @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(inputs)
        def some(value: object) -> None:
            nonlocal tried
            tried += 1
            with contextlib.suppress(UserError):
                attempt(value)

        number = 0
        while time.monotonic() < end:
            seed(number)(some)()
            number += 1
        note(f"fuzz: {what}", f"{tried} inputs, 0 crashes", "0 crashes")

    return run


def changed(good: bytes) -> st.SearchStrategy[bytes]:
    """A good file with some bytes put in, changed or cut."""
    edits = st.lists(
        st.tuples(st.integers(0, len(good)), st.integers(0, 8), st.binary(max_size=8)), max_size=6
    )

    def apply(list_of_edits: list[tuple[int, int, bytes]]) -> bytes:
        content = good
        for at, length, new in list_of_edits:
            content = content[:at] + new + content[at + length :]
        return content

    return edits.map(apply) | st.binary(max_size=200)


def test_where(fuzz: Callable[..., None]) -> None:
    words = st.lists(st.sampled_from(_WORDS), max_size=40).map(" ".join)
    long = st.builds(lambda first, rest, times: first + rest * times, words, words, st.integers(0, 300))

    def attempt(text: str) -> None:
        condition = parse_where(text, ["year", "brand"])
        if condition is not None:
            meets(condition, "a", {"year": "1"})
            to_milvus(condition)

    lists = st.integers(0, 1100).map(lambda count: f"year in ({','.join('1' * count)})")
    fuzz("where", st.text(max_size=80) | words | long | lists, attempt)


def test_labels(fuzz: Callable[..., None], tmp_path: Path) -> None:
    good = b"path,instance,role,x1,y1,x2,y2\na.jpg,one,query,1,2,3,4\nb.jpg,one,index,,,,\n"
    from PIL import Image

    from insclr.data.decode import crop_box
    from insclr.evaluation.evaluate import require_images

    picture = Image.new("RGB", (8, 8))

    def attempt(content: bytes) -> None:
        (tmp_path / "labels.csv").write_bytes(content)
        labels = read_labels(tmp_path / "labels.csv")
        labels.instance_ids()
        for box in labels.boxes or ():
            if box is not None:
                crop_box(picture, box)
        require_images(labels, allow_missing=True)

    fuzz("labels CSV", changed(good), attempt)


def test_parquet_list(fuzz: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"any file")
    good = pa.table({"path": ["a.png"], "year": ["1900"], "number": [1.5]})
    pq.write_table(good, tmp_path / "list.parquet")

    def attempt(content: bytes) -> None:
        (tmp_path / "list.parquet").write_bytes(content)
        list_images(tmp_path / "list.parquet")

    fuzz("Parquet list", changed((tmp_path / "list.parquet").read_bytes()), attempt)


def test_recipe(fuzz: Callable[..., None], tmp_path: Path) -> None:
    flat = to_toml(load_recipe(recipe_names()[0])).encode()
    built = b"extends = 'fast'\nseed = 1\n[[rounds]]\nsteps = 3\n"
    deep = st.builds(
        lambda key, opened, times: f"{key} = {opened * times}".encode(),
        st.sampled_from(["seed", "rounds", "extends", "a." * 900 + "a"]),
        st.sampled_from(["[", "{a=", "9", "'"]),
        st.integers(1, 6000),
    )

    def attempt(content: bytes) -> None:
        (tmp_path / "recipe.toml").write_bytes(content)
        load_recipe(tmp_path / "recipe.toml", ("rounds.lr=1e-5",))

    fuzz("recipe TOML", changed(flat) | changed(built) | deep, attempt)


def test_pickle(fuzz: Callable[..., None], tmp_path: Path) -> None:
    plain = {"gnd": [{"bbx": [1.0, 2.0], "easy": [1, 2]}], "imlist": ["a"], "qimlist": ["b"]}
    arrays = {"gnd": [{"bbx": np.arange(4.0), "easy": np.arange(3)}], "imlist": np.array(["a", "b"])}
    good = [pickle.dumps(one, protocol) for one in (plain, arrays) for protocol in (2, 4, 5)]

    def attempt(content: bytes) -> None:
        (tmp_path / "gnd.pkl").write_bytes(content)
        load_pickle(tmp_path / "gnd.pkl")

    fuzz("ground-truth pickle", st.one_of([changed(one) for one in good]), attempt)


def test_files_of_a_run_and_of_a_store(fuzz: Callable[..., None], tmp_path: Path) -> None:
    """The JSON files of a run and of a store: changed bytes, and any values under the names that are read."""
    (tmp_path / "models").mkdir()
    good: dict[str, dict[str, Any]] = {
        "run/options.json": {"images": "/photos", "answers": "/store", "size": "224"},
        "run/images.json": {"root": "/photos", "paths": ["a.jpg", "b.jpg"], "not_read": {"text": 3}},
        "run/start.json": {"size": {"core": 4, "whole": 8, "reach": 12}, "reasons": ["one"]},
        "run/measured.json": {"proof": [1, 2]},
        "run/pair_trust.json": {"trust": "trusted"},
        "run/metrics.jsonl": {"round": 1, "step": 3, "event": "end", "steps": 5, "action": "step back"},
        "models/models.json": {"current": 2, "before": 1, "last": 2},
    }
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )
    contents = {
        name: changed(json.dumps(value).encode())
        | st.fixed_dictionaries(dict.fromkeys(value, values)).map(lambda one: json.dumps(one).encode())
        | values.map(lambda one: json.dumps(one).encode())
        for name, value in good.items()
    }
    inputs = st.sampled_from(list(good)).flatmap(lambda name: st.tuples(st.just(name), contents[name]))
    run = RunFolder(tmp_path / "run", Recipe(), resume=False)
    readers: list[Callable[[], object]] = [
        *(run.size, run.initial_fc_reasons, run.pair_trust, run.kept_rounds),
        *(lambda: run.images(None), lambda: RunReader(run.path).read_measured()),
        *(lambda: run.option("images"), lambda: kept_answers(run.path), lambda: read_models(tmp_path)),
    ]

    def attempt(value: tuple[str, bytes]) -> None:
        for name, content in good.items():
            (tmp_path / name).write_text(json.dumps(content))
        (tmp_path / value[0]).write_bytes(value[1])
        for read in readers:
            with contextlib.suppress(UserError):
                read()

    fuzz("JSON of a run folder and of a store's models", inputs, attempt)


def test_model_header(fuzz: Callable[..., None], tmp_path: Path) -> None:
    """Bytes of the header, and texts in it behind a digest that fits: whoever forges one can forge the other."""
    from insclr.model.network import create_network

    recipe = Recipe(network=NetworkRecipe(dim=8))
    save_model(tmp_path / "good", create_network(recipe.network, pretrained=False), recipe)
    content = (tmp_path / "good").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    weights = {"fc.weight": np.ones((8, 4), np.float32)}
    texts = changed(to_toml(recipe).encode()) | changed(json.dumps({"images": "3"}).encode())
    forged = st.fixed_dictionaries(
        {
            "format": st.sampled_from(["insclr-1", "insclr-2"]),
            "recipe": texts.map(lambda one: one.decode(errors="replace")),
            "notes": st.sampled_from(["{}", "[" * 9000]) | st.text(max_size=20),
        }
    )

    def attempt(header: bytes | dict[str, str]) -> None:
        if isinstance(header, bytes):
            (tmp_path / "model").write_bytes(header + content[end : end + 4096])
        else:
            header = header | {"digest": digest(weights, header)}
            safetensors.numpy.save_file(weights, tmp_path / "model", header)
        load_model(tmp_path / "model")

    fuzz("model header", changed(content[:end]) | forged, attempt)

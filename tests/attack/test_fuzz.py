"""Parsers of what users and strangers write: whatever comes, a result or a UserError."""

import contextlib
import pickle
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from insclr.data.labels import read_labels
from insclr.errors import UserError
from insclr.evaluation.safe_pickle import load_pickle
from insclr.model.model_file import load_model, save_model
from insclr.recipe import load_recipe, recipe_names, to_toml
from insclr.retrieval.store.local import to_sql
from insclr.retrieval.store.where import parse_where

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
        end = time.monotonic() + (600 if soak else 10)

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
    texts = st.text(max_size=80) | st.lists(st.sampled_from(_WORDS), max_size=40).map(" ".join)

    def attempt(text: str) -> None:
        condition = parse_where(text, ["year", "brand"])
        if condition is not None:
            to_sql(condition)

    fuzz("where", texts, attempt)


def test_labels(fuzz: Callable[..., None], tmp_path: Path) -> None:
    good = b"path,instance,role,x1,y1,x2,y2\na.jpg,one,query,1,2,3,4\nb.jpg,one,index,,,,\n"

    def attempt(content: bytes) -> None:
        (tmp_path / "labels.csv").write_bytes(content)
        read_labels(tmp_path / "labels.csv")

    fuzz("labels CSV", changed(good), attempt)


def test_recipe(fuzz: Callable[..., None], tmp_path: Path) -> None:
    good = to_toml(load_recipe(recipe_names()[0])).encode()

    def attempt(content: bytes) -> None:
        (tmp_path / "recipe.toml").write_bytes(content)
        load_recipe(tmp_path / "recipe.toml")

    fuzz("recipe TOML", changed(good), attempt)


def test_pickle(fuzz: Callable[..., None], tmp_path: Path) -> None:
    good = pickle.dumps({"gnd": [{"bbx": [1.0, 2.0], "easy": [1, 2]}], "imlist": ["a"], "qimlist": ["b"]})

    def attempt(content: bytes) -> None:
        (tmp_path / "gnd.pkl").write_bytes(content)
        load_pickle(tmp_path / "gnd.pkl")

    fuzz("ground-truth pickle", changed(good), attempt)


def test_model_header(fuzz: Callable[..., None], tmp_path: Path) -> None:
    from insclr.model.network import create_network
    from insclr.recipe import NetworkRecipe, Recipe

    recipe = Recipe(network=NetworkRecipe(dim=8))
    save_model(tmp_path / "good", create_network(recipe.network, pretrained=False), recipe)
    content = (tmp_path / "good").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")

    def attempt(header: bytes) -> None:
        (tmp_path / "model").write_bytes(header + content[end : end + 4096])
        load_model(tmp_path / "model")

    fuzz("model header", changed(content[:end]), attempt)

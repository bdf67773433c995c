"""Local features beside a store: kept once, dropped with their photo, missing ones said and survived."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.blots import placed, textured
from helpers.histogram_describer import HistogramDescriber
from insclr.data.decode import Box
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.options import SearchOptions
from insclr.retrieval import local_database, local_features
from insclr.retrieval.index import index_images
from insclr.retrieval.local_database import LocalFeatureDatabase
from insclr.retrieval.local_features import extract_features
from insclr.retrieval.query import image_query
from insclr.retrieval.search import Match
from insclr.retrieval.search import search as search_store
from insclr.store import Store, open_store


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    placed(textured(1), 20, 0.8, (150, 100)).save(folder / "with.png")
    for seed in (50, 51, 52):
        textured(seed, 480).save(folder / f"{seed}.png")
    Image.new("RGB", (200, 200), "white").save(folder / "white.png")
    return folder


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where a Milvus store keeps its files


def search(store: Store, query: Image.Image, **asked: object) -> list[Match]:
    options = SearchOptions().change({"local": "on"} | asked)
    return search_store(store, HistogramDescriber(), [image_query(query)], options)


def kept_hashes(store: Store) -> set[str]:
    kept = LocalFeatureDatabase(store.parts)
    try:
        return kept.hashes()
    finally:
        kept.close()


def test_features_are_made_once_and_go_with_their_photo(
    photos: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_images(HistogramDescriber(), list_images(photos), uri, local="on")
    extracted: list[int] = []
    original = local_features.extract_features

    def counting(image: Image.Image, box: Box | None = None) -> object:
        extracted.append(1)
        return original(image, box)

    monkeypatch.setattr(local_database, "extract_features", counting)
    (photos / "with.png").rename(photos / "moved.png")
    (photos / "50.png").unlink()
    textured(60, 300).save(photos / "60.png")
    index_images(
        HistogramDescriber(), list_images(photos), uri, prune=True
    )  # a store that has them goes on having them
    assert len(extracted) == 1
    store = open_store(uri)
    assert kept_hashes(store) == {row.image.hash for row in store.rows_by_path().values()}
    assert store.count() == 5
    (first, *others) = search(store, textured(1), top=5)
    store.close()
    assert first.path == "moved.png"
    assert (first.inliers or 0) >= 8
    assert first.box is not None
    assert {one.inliers for one in others} == {0}


def test_missing_features_are_said_and_the_photos_keep_their_place(
    photos: Path, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    index_images(HistogramDescriber(), list_images(photos), uri, local="on")
    store = open_store(uri)
    kept = LocalFeatureDatabase(store.parts)
    kept.drop([store.rows_by_path()["50.png"].image.hash])
    kept.close()
    with caplog.at_level(logging.WARNING):
        matches = search(store, textured(1))
    store.close()
    assert "1 of the 5 images compared have no local features" in caplog.text
    assert {match.path: match.inliers is None for match in matches} == {
        "50.png": True, "51.png": False, "52.png": False, "white.png": False, "with.png": False,
    }  # fmt: skip
    assert matches[0].path == "with.png"


def test_a_store_without_any_reports_what_to_do(photos: Path, uri: str) -> None:
    index_images(HistogramDescriber(), list_images(photos), uri)
    store = open_store(uri)
    with pytest.raises(UserError, match=r"no local features of these photos: make them with .* --local on"):
        search(store, textured(1))
    store.close()


def test_a_query_without_points_is_answered_by_similarity(
    photos: Path, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    index_images(HistogramDescriber(), list_images(photos), uri, local="on")
    store = open_store(uri)
    white = Image.new("RGB", (100, 100), "white")
    with caplog.at_level(logging.WARNING):
        matches = search(store, white)
    plain = search(store, white, local="off")
    store.close()
    assert "the query has no points to match" in caplog.text
    assert [one.path for one in matches] == [one.path for one in plain]
    assert all(one.inliers is None and one.box is None for one in matches)


def test_a_damaged_file_of_features_is_reported(photos: Path, tmp_path: Path) -> None:
    index_images(HistogramDescriber(), list_images(photos), tmp_path / "s", local="on")
    (tmp_path / "s" / "parts.sqlite").write_bytes(b"no database at all, " * 500)
    store = open_store(tmp_path / "s")
    with pytest.raises(UserError, match=r"parts\.sqlite is damaged: delete it"):
        search(store, textured(1))
    plain = search(store, textured(1), local="off")
    store.close()
    assert len(plain) == 5  # nothing else is lost


def test_kept_features_are_what_extraction_gives(photos: Path, tmp_path: Path) -> None:
    index_images(HistogramDescriber(), list_images(photos), tmp_path / "s", local="on")
    store = open_store(tmp_path / "s")
    kept = LocalFeatureDatabase(store.parts)
    row = store.rows_by_path()["51.png"]
    found = kept.read([row.image.hash])[row.image.hash]
    kept.close()
    store.close()
    expected = extract_features(Image.open(photos / "51.png").convert("RGB"))
    assert found.to_bytes() == expected.to_bytes()
    assert np.isfinite(expected.points).all()


def test_features_of_another_format_do_no_harm_and_are_made_again(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index_images(HistogramDescriber(), list_images(photos), tmp_path / "s", local="on")
    store = open_store(tmp_path / "s")
    with closing(sqlite3.connect(store.parts)) as file, file:
        file.execute("PRAGMA user_version = 0")
        file.execute("CREATE TABLE asmk (hash TEXT PRIMARY KEY, kept BLOB NOT NULL)")
    assert kept_hashes(store) == set()
    with caplog.at_level(logging.WARNING):
        assert len(search(store, textured(1), local="auto")) == 5
        search(store, textured(1), local="auto")
    assert caplog.text.count("no local features of these photos") == 1
    with pytest.raises(UserError, match=r"no local features of these photos: make them with .* --local on"):
        search(store, textured(1))
    index_images(HistogramDescriber(), list_images(photos), tmp_path / "s")
    first = search(store, textured(1))[0]
    assert (first.path, (first.inliers or 0) >= 8) == ("with.png", True)
    with closing(sqlite3.connect(store.parts)) as file:
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"features", "vocabulary"}
    store.close()

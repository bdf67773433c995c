"""Searching: one query, query sets, limits, filters, re-ranking."""

from pathlib import Path

import numpy as np
import pytest

from helpers.vector_search import search_vectors
from insclr.errors import UserError
from insclr.options import Reranker, SearchOptions
from insclr.retrieval import search as search_module
from insclr.store import IndexedImage, Store, StoreInfo, create_store


def rows(*directions: tuple[float, ...]) -> np.ndarray:
    vectors = np.array(directions, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


DATABASE = rows((1, 0, 0), (0.9, 0.2, 0), (0, 1, 0), (0.2, 0.9, 0), (0.7, 0.7, 0), (0, 0, 1))
X, Y = rows((1, 0, 0)), rows((0, 1, 0))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = create_store(tmp_path / "s", StoreInfo("m", "f", 3, tmp_path))
    pictures = [
        IndexedImage(f"{i}.jpg", str(i), 1, 1, {"kind": "even" if i % 2 == 0 else "odd"}) for i in range(6)
    ]
    store.upsert(pictures, DATABASE)
    return store


def paths(matches: list) -> list[str]:
    return [match.path for match in matches]


def test_matches_come_best_first_with_cosine_score_and_columns(store: Store) -> None:
    first, second, third = search_vectors(store, X, SearchOptions(top=3))
    assert [one.path for one in (first, second, third)] == ["0.jpg", "1.jpg", "4.jpg"]
    assert first.similarity == pytest.approx(1.0, abs=1e-3)
    assert first.score == pytest.approx(1.0, abs=1e-3)
    assert third.similarity == pytest.approx(0.5**0.5, abs=1e-3)
    # A store that is not calibrated yet: score 0 at cosine 0.4, a half at 0.75, linear between them.
    assert third.score == pytest.approx(0.5 * (0.5**0.5 - 0.4) / 0.35, abs=1e-2)
    assert (first.likely, third.likely) == (True, False)
    assert (first.band, third.band) == ("sure", "maybe")
    assert first.columns == {"kind": "even"}
    assert first.to_json()["path"] == "0.jpg"


def test_the_mean_of_a_query_set_prefers_what_is_like_both(store: Store) -> None:
    both = search_vectors(store, np.concatenate([X, Y]), SearchOptions(top=6))
    assert both[0].path == "4.jpg"
    assert both[0].similarity == pytest.approx(0.5**0.5, abs=1e-3)
    by_hand = {f"{i}.jpg": float((DATABASE[i] @ X[0] + DATABASE[i] @ Y[0]) / 2) for i in range(6)}
    for match in both:
        assert match.similarity == pytest.approx(by_hand[match.path], abs=2e-3)


def test_the_max_of_a_query_set_prefers_what_is_like_one(store: Store) -> None:
    either = search_vectors(store, np.concatenate([X, Y]), SearchOptions(top=4, aggregate="max"))
    assert set(paths(either)[:2]) == {"0.jpg", "2.jpg"}
    assert set(paths(either)) == {"0.jpg", "2.jpg", "1.jpg", "3.jpg"}
    assert len(set(paths(either))) == 4


def test_min_score_and_where_limit_the_matches(store: Store) -> None:
    assert paths(search_vectors(store, X, SearchOptions(min_score=0.9))) == ["0.jpg", "1.jpg"]
    assert paths(search_vectors(store, X, SearchOptions(where="kind = odd", top=2))) == ["1.jpg", "3.jpg"]
    assert search_vectors(store, X, SearchOptions(where="kind = none")) == []


@pytest.mark.parametrize("name", ["diffusion"])
def test_every_reranker_gives_an_order_of_the_same_rows(store: Store, name: Reranker) -> None:
    plain = search_vectors(store, X, SearchOptions(top=6))
    better = search_vectors(store, X, SearchOptions(top=6, rerank=name))
    assert sorted(paths(better)) == sorted(paths(plain))
    cosine = {match.path: match.similarity for match in plain}
    assert all(match.similarity == pytest.approx(cosine[match.path], abs=1e-3) for match in better)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"top": 0}, "top"),
        ({"top": 5000}, "top"),
        ({"min_score": 2}, "min score"),
        ({"aggregate": "sum"}, "mean, max"),
        ({"rerank": "magic"}, "choose one of diffusion"),
        ({"local": "maybe"}, "auto, on, off"),
    ],
)
def test_impossible_wishes_are_named(asked: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SearchOptions(**asked)


def test_empty_and_opposite_queries(store: Store) -> None:
    with pytest.raises(UserError, match="at least one query"):
        search_vectors(store, X[:0], SearchOptions())
    with pytest.raises(UserError, match="cancel each other"):
        search_vectors(store, np.concatenate([X, -X]), SearchOptions())


def images(*hashes: str) -> list[IndexedImage]:
    return [IndexedImage(f"{place}.jpg", content, 1, 1) for place, content in enumerate(hashes)]


def test_copies_of_a_photo_are_one_match(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", StoreInfo("m", "f", 3, tmp_path))
    # 1 is 0 compressed anew, 2 is the same file as 3; 4 is a photo of its own.
    vectors = rows((1, 0, 0), (1, 0.02, 0), (0.9, 0.3, 0), (0.9, 0.3, 0), (0, 1, 0))
    store.upsert(images("a", "b", "c", "c", "d"), vectors)
    matches = search_vectors(store, rows((1, 0.01, 0.05)), SearchOptions(top=2))
    assert [{one.path, *one.copies} for one in matches] == [{"0.jpg", "1.jpg"}, {"2.jpg", "3.jpg"}]
    assert len(search_vectors(store, X, SearchOptions(top=5))) == 3


def test_the_query_itself_is_marked_and_comes_besides_the_others(store: Store) -> None:
    marked = search_vectors(store, X, SearchOptions(top=2), hashes=["0"])
    assert [(one.path, one.is_query) for one in marked] == [
        ("0.jpg", True),
        ("1.jpg", False),
        ("4.jpg", False),
    ]
    assert not any(one.is_query for one in search_vectors(store, X, SearchOptions(top=2)))


def test_an_empty_store_and_a_store_of_one_row_answer(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", StoreInfo("m", "f", 3, tmp_path))
    assert search_vectors(store, X, SearchOptions()) == []
    store.upsert(images("a"), X)
    (only,) = search_vectors(store, X, SearchOptions(), hashes=["a"])
    assert (only.is_query, only.score) == (True, pytest.approx(1, abs=1e-3))


def test_a_result_joins_the_first_photo_it_is_a_copy_of() -> None:
    # Degrees apart: 0, 6, 12 and 40. Cosine 0.99 is 8.1 degrees: 1 is a copy of 0, 2 is one of 1 but not of 0.
    angles = np.radians([0, 6, 12, 40, 41])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert search_module.group_copies(["a", "b", "c", "d", "a"], vectors) == [[0, 1, 4], [2], [3]]
    assert search_module.group_copies([], vectors[:0]) == []

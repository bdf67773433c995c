"""Searching: one query, query sets, limits, filters, re-ranking."""

from pathlib import Path

import numpy as np
import pytest

from insclr.errors import UserError
from insclr.retrieval.score import UNCALIBRATED
from insclr.retrieval.search import Search, search_set
from insclr.retrieval.store import IndexedImage, Store, StoreInfo, create_store


def rows(*directions: tuple[float, ...]) -> np.ndarray:
    vectors = np.array(directions, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


DATABASE = rows((1, 0, 0), (0.9, 0.1, 0), (0, 1, 0), (0.1, 0.9, 0), (0.7, 0.7, 0), (0, 0, 1))
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
    first, second, third = search_set(store, X, Search(top=3))
    assert [one.path for one in (first, second, third)] == ["0.jpg", "1.jpg", "4.jpg"]
    assert first.similarity == pytest.approx(1.0, abs=1e-3)
    assert first.score == pytest.approx(1.0, abs=1e-3)
    assert third.similarity == pytest.approx(0.5**0.5, abs=1e-3)
    assert (first.likely, third.likely) == (True, third.similarity >= UNCALIBRATED.cutoff)
    assert first.columns == {"kind": "even"}
    assert first.to_json()["path"] == "0.jpg"


def test_the_mean_of_a_query_set_prefers_what_is_like_both(store: Store) -> None:
    both = search_set(store, np.concatenate([X, Y]), Search(top=6))
    assert both[0].path == "4.jpg"
    assert both[0].similarity == pytest.approx(0.5**0.5, abs=1e-3)
    by_hand = {f"{i}.jpg": float((DATABASE[i] @ X[0] + DATABASE[i] @ Y[0]) / 2) for i in range(6)}
    for match in both:
        assert match.similarity == pytest.approx(by_hand[match.path], abs=2e-3)


def test_the_max_of_a_query_set_prefers_what_is_like_one(store: Store) -> None:
    either = search_set(store, np.concatenate([X, Y]), Search(top=4, aggregate="max"))
    assert set(paths(either)[:2]) == {"0.jpg", "2.jpg"}
    assert set(paths(either)) == {"0.jpg", "2.jpg", "1.jpg", "3.jpg"}
    assert len(set(paths(either))) == 4


def test_min_score_and_where_limit_the_matches(store: Store) -> None:
    assert paths(search_set(store, X, Search(min_score=0.9))) == ["0.jpg", "1.jpg"]
    assert paths(search_set(store, X, Search(where="kind = odd", top=2))) == ["1.jpg", "3.jpg"]
    assert search_set(store, X, Search(where="kind = none")) == []


@pytest.mark.parametrize("name", ["aqe", "alphaqe", "dba", "diffusion", "egt", "kreciprocal"])
def test_every_reranker_gives_an_order_of_the_same_rows(store: Store, name: str) -> None:
    plain = search_set(store, X, Search(top=6))
    better = search_set(store, X, Search(top=6, rerank=name))
    assert sorted(paths(better)) == sorted(paths(plain))
    cosine = {match.path: match.similarity for match in plain}
    assert all(match.similarity == pytest.approx(cosine[match.path], abs=1e-3) for match in better)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"top": 0}, "top"),
        ({"top": 5000}, "top"),
        ({"min_score": 2}, "min score"),
        ({"aggregate": "sum"}, "mean or max"),
    ],
)
def test_impossible_wishes_are_named(asked: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Search(**asked)


def test_unknown_reranker_empty_and_opposite_queries(store: Store) -> None:
    with pytest.raises(UserError, match="re-ranker"):
        search_set(store, X, Search(rerank="magic"))
    with pytest.raises(UserError, match="at least one query"):
        search_set(store, X[:0], Search())
    with pytest.raises(UserError, match="cancel each other"):
        search_set(store, np.concatenate([X, -X]), Search())

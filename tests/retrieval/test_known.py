"""What people said counts in a search: names, answers, and "not this"."""

from pathlib import Path

import numpy as np
import pytest

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.feedback.entries import add_images, answer, name_thing, remove_images
from insclr.feedback.feedback import read_known
from insclr.options import SearchOptions
from insclr.retrieval.index import index_images
from insclr.retrieval.query import Query, image_query
from insclr.retrieval.ranking import shift_away
from insclr.retrieval.search import Match, search
from insclr.store import Store, open_store

ALL = SearchOptions(top=24)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    draw_things(tmp_path / "photos", 4, 6)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    return open_store(tmp_path / "store")


def query(store: Store, path: str) -> Query:
    return image_query(store.info.root / path)


def image(store: Store, *paths: str) -> list[str]:
    rows = store.rows_by_path()
    return [rows[path].image.hash for path in paths]


def test_same_named_photos_are_sure_and_first_and_other_names_are_last(store: Store) -> None:
    # Far apart by their descriptors: the names alone decide.
    store.append(name_thing("thing-00", "mug", image(store, "0/0.png", "3/0.png")))
    store.append(name_thing("thing-01", "vase", image(store, "0/1.png")))
    found = search(store, HistogramDescriber(), [query(store, "0/0.png")], ALL, known=read_known(store))
    others = [match for match in found if not match.is_query]
    assert (others[0].path, others[0].band, others[0].score) == ("3/0.png", "sure", 1.0)
    assert (others[-1].path, others[-1].band, others[-1].score) == ("0/1.png", "other", 0.0)
    assert others[0].similarity < others[1].similarity  # the cosine is the cosine


def test_answers_and_named_groups_count_and_what_joined_by_score_does_not(store: Store) -> None:
    first, second, third, fourth, wrong = image(store, "0/0.png", "3/0.png", "2/0.png", "2/1.png", "1/0.png")
    store.append([answer(first, [second], [])])
    # A person opens a group, takes a wrong photo out and names the rest; a table brings one more by score.
    store.append(name_thing("thing-00", "", [first, third, wrong], grouped=True))
    known = read_known(store)
    assert known.relation({first}, second) == 1
    assert known.relation({first}, third) == 0  # nobody named the group yet
    store.append([*remove_images("thing-00", [wrong]), *name_thing("thing-00", "mug", [])])
    store.append(add_images("thing-00", [fourth], grouped=True))
    known = read_known(store)
    assert known.relation({first}, third) == 1
    assert [known.relation({one}, wrong) for one in (first, second, third)] == [-1, -1, -1]
    assert known.relation({first}, fourth) == 0


def test_not_this_leaves_the_results_and_pushes_what_is_like_it_back(store: Store) -> None:
    asked, unlike = [query(store, "0/0.png")], [query(store, "1/0.png")]
    before = search(store, HistogramDescriber(), asked, ALL)
    after = search(store, HistogramDescriber(), asked, ALL, unlike=unlike)
    assert "1/0.png" in {one.path for one in before}
    assert "1/0.png" not in {path for one in after for path in (one.path, *one.copies)}
    cosine = {one.path: one.similarity for one in before}
    assert all(
        one.similarity == pytest.approx(cosine[one.path], abs=1e-3) for one in after if one.path in cosine
    )

    def mean_rank(found: list[Match]) -> float:
        paths = [one.path for one in found if one.path != "1/0.png"]
        return float(np.mean([rank for rank, path in enumerate(paths) if path.startswith("1/")]))

    assert mean_rank(after) >= mean_rank(before)


def test_a_shifted_query_is_a_unit_vector_away_from_the_other() -> None:
    asked, other = np.eye(3, dtype=np.float32)[:1], np.array([[0.6, 0.8, 0]], np.float32)
    (shifted,) = shift_away(asked, [other])
    assert np.linalg.norm(shifted) == pytest.approx(1)
    assert shifted @ other[0] < asked[0] @ other[0]
    np.testing.assert_array_equal(shift_away(asked, []), asked)


def test_the_photo_that_a_box_was_drawn_in_comes_first(store: Store) -> None:
    row = store.rows_by_path()["0/3.png"]
    part = image_query(store.info.root / "2/0.png", (0, 0, 9, 9))  # as if the part looked like another thing
    found = search(
        store, HistogramDescriber(), [Query(part.decode, part_of=(store, row))], SearchOptions(top=5)
    )
    assert (found[0].path, found[0].is_query) == ("0/3.png", True)
    assert len(found) == 6
    assert [one.path for one in found].count("0/3.png") == 1

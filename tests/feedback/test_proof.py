"""The proof: its interval by hand, and what a judgement costs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.feedback.entries import judge
from insclr.feedback.feedback import FairSample, FirstResults, Precision, replay
from insclr.retrieval.index import index_images
from insclr.store import Entry, Neighbours, open_store


def test_wilson_interval_of_a_textbook() -> None:
    # 81 of 263 (Newcombe 1998, table I): 0.2553 to 0.3662.
    low, high = Precision(81, 263).interval
    assert (low, high) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))


def test_certainty_is_never_claimed() -> None:
    assert Precision(30, 30).interval[0] == pytest.approx(0.8865, abs=5e-4)  # n / (n + z^2)
    assert Precision(30, 30).interval[1] == pytest.approx(1.0)
    assert Precision(0, 0).interval == (0.0, 1.0)


def test_few_judgements_say_how_many_are_missing() -> None:
    assert Precision(5, 6).sentence() == "6 of 30 results judged"
    assert "between" in Precision(25, 30).sentence()


def test_the_tenth_judgement_costs_no_more_searches_than_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_things(tmp_path / "photos", 3, 4)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    stores = [open_store(tmp_path / "store") for _ in range(2)]  # after, before
    searched: list[int] = []

    def counted(search: Callable[..., Neighbours]) -> Callable[..., Neighbours]:
        def count(*asked: object) -> Neighbours:
            searched.append(1)
            return search(*asked)

        return count

    for store in stores:
        monkeypatch.setattr(store, "search", counted(store.search))
    results = [FirstResults(store) for store in stores]
    entries: list[Entry] = []
    for number in range(10):
        searched.clear()
        sample = FairSample(results, replay(entries))
        assert [sample.precision(place).judged for place in (0, 1)] == [number, number]
        found = sample.draw()
        assert found is not None
        assert len(searched) <= len(stores)  # for the next draw
        entries.append(judge(found.query, found.result, found.rank, same=True, model="m"))


def test_thirty_answers_are_enough_also_where_two_models_are_compared() -> None:
    assert Precision(14, 16, answers=29).sentence() == "29 of 30 results judged"
    assert "from 16 judged results" in Precision(14, 16, answers=30).sentence()

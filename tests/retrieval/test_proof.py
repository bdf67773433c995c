"""The interval of the proof, by hand."""

import pytest

from insclr.retrieval.proof import Precision


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

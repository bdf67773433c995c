"""A long job is never silent: a line now and then where there is no terminal, with the time left."""

import json
import time

import pytest

from insclr import progress
from insclr.progress import followed_by, in_words, progress_bar, working


@pytest.fixture(autouse=True)
def _quick_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.05)


def _wait() -> None:
    time.sleep(0.4)


def test_without_a_terminal_a_bar_prints_its_position(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("describing", 601, done=100) as bar:
        bar.advance(32)
        _wait()
    shown = capsys.readouterr().err.splitlines()
    assert shown
    assert all(line.startswith("describing: 132 of 601, ") and line.endswith(" left") for line in shown)


def test_a_stage_without_a_count_prints_its_elapsed_time(capsys: pytest.CaptureFixture[str]) -> None:
    with working("indexing"), progress_bar("describing", 8):
        _wait()
    assert "indexing: 0 s so far · describing: 0 of 8" in capsys.readouterr().err


def test_progress_as_json_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "as_json", True)
    with working("indexing"), progress_bar("describing", 8) as bar:
        bar.advance(2)
        _wait()
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line["level"] == "progress"
    assert line["stages"] == [
        {"stage": "indexing", "done": 0, "total": None},
        {"stage": "describing", "done": 2, "total": 8},
    ]


def test_the_time_left_of_a_part_is_not_that_of_its_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "as_json", True)
    with working("choosing the size of views"), progress_bar("describing", 8) as bar:
        bar.advance(4)
        _wait()
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["left"] is None
    with progress_bar("indexing", 8) as whole, progress_bar("describing", 80):
        whole.advance(4)
        _wait()
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["left"] > 0


def test_nothing_is_said_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("describing", 8):
        pass
    capsys.readouterr()
    _wait()
    assert capsys.readouterr().err == ""


def test_the_time_left_in_all_counts_what_comes_after(capsys: pytest.CaptureFixture[str]) -> None:
    with followed_by(lambda: 7200.0), working("round 1"), progress_bar("training", 4) as bar:
        bar.advance(4)
        _wait()
    assert "training: 4 of 4, 0 s left · about 2 h 0 min in all" in capsys.readouterr().err


def test_a_bar_takes_a_new_total(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("training", 20_000) as bar:
        bar.expect(300)
        _wait()
    assert "training: 0 of 300" in capsys.readouterr().err


def test_of_several_ranks_only_the_first_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with progress_bar("describing", 8) as bar:
        bar.advance()
        _wait()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_nested_bars_share_one_display(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with working("round 1"), progress_bar("indexing", 2) as outer:
        for _ in range(2):
            with progress_bar("describing", 3) as inner:
                inner.advance(3, loss="0.5")
            outer.advance()
    assert "indexing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (89, "89 s"), (95, "2 min"), (3600, "60 min"), (7900, "2 h 12 min")]
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words

"""The metrics of a run that was resumed."""

from pathlib import Path

import pytest

from insclr.tracking import Tracker, read_metrics


def places(folder: Path) -> list[tuple[int, int, str | None]]:
    return [(record["round"], record["step"], record.get("event")) for record in read_metrics(folder)]


def test_a_resumed_run_keeps_every_record_up_to_its_checkpoint_and_no_later_one(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    tracker.event(1, "start")
    tracker.step(1, 10, loss=0.5)
    tracker.event(1, "planned", step=10, steps=20)
    # Here the checkpoint of step 10 is written, and the run killed somewhat later.
    tracker.step(1, 20, loss=0.4)
    tracker.event(1, "end", step=20)
    tracker.close()
    Tracker(tmp_path, after=(1, 10)).close()
    assert places(tmp_path) == [(1, -1, "start"), (1, 10, None), (1, 10, "planned")]


def test_what_comes_after_the_last_checkpoint_of_a_round_is_written_again(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    tracker.step(1, 20, loss=0.4)
    tracker.event(1, "end", step=20)
    tracker.event(1, "guard", step=20)
    tracker.close()
    Tracker(tmp_path, after=(1, 20)).close()
    assert places(tmp_path) == [(1, 20, None)]


def test_a_round_without_a_checkpoint_begins_its_story_anew(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    tracker.event(1, "end", step=20)
    tracker.event(2, "start")
    tracker.step(2, 10, loss=0.3)
    tracker.close()
    (tmp_path / "metrics.jsonl").open("a").write('{"round": 2, "st')  # half a line: killed while writing
    Tracker(tmp_path, after=(2, -1)).close()
    assert places(tmp_path) == [(1, 20, "end")]


def test_the_log_goes_on_where_there_can_be_no_curves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorboard").write_text("no folder")
    tracker = Tracker(tmp_path)
    tracker.step(1, 10, loss=0.5)
    tracker.close()
    assert "there are no curves" in caplog.text
    (tmp_path / "tensorboard").unlink()
    later = Tracker(tmp_path, after=(1, 10))

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "events")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", fail)
    later.step(1, 20, loss=0.4)
    later.step(1, 30, loss=0.3)
    later.close()
    assert caplog.text.count("curves end here") == 1
    assert places(tmp_path) == [(1, 10, None), (1, 20, None), (1, 30, None)]

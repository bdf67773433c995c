"""The metrics of a run that was resumed."""

from pathlib import Path

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

"""The log of a run: metrics.jsonl, and TensorBoard where it is installed."""

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from insclr.files import whole_file


class Tracker:
    """Appends one JSON line a record; every record has a round and a step, some an event."""

    def __init__(self, folder: Path, after: tuple[int, int] | None = None) -> None:
        """Open the run's log. `after` = (round, step) of the checkpoint a resumed run goes on from."""
        self.path = folder / "metrics.jsonl"
        if after is not None and self.path.exists():
            self._drop_after(*after)
        elif self.path.exists():
            self.path.unlink()
        self._file = self.path.open("a")
        self._board = _open_board(folder / "tensorboard")

    def step(self, round_number: int, step: int, **values: float) -> None:
        """Note the numbers of a training step."""
        self._write({"round": round_number, "step": step, **values})
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"round-{round_number}/{name}", value, step)

    def event(self, round_number: int, event: str, step: int = -1, **values: Any) -> None:
        """Note something that happened before `step`: a start, an evaluation, what calibration chose."""
        self._write({"round": round_number, "step": step, "event": event, **values})

    def sync(self) -> None:
        """Put what was written so far on disk: a checkpoint that follows must not outlive its records."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and close."""
        self.sync()
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def _drop_after(self, last_round: int, last_step: int) -> None:
        """Drop what an interrupted run wrote after its last checkpoint: it will be written again."""
        records = _whole_records(self.path.read_text(errors="replace"))
        kept = [record for record in records if _before_checkpoint(record, (last_round, last_step))]
        with whole_file(self.path) as scratch:
            scratch.write_text("".join(f"{json.dumps(record)}\n" for record in kept))


def _before_checkpoint(record: dict[str, Any], point: tuple[int, int]) -> bool:
    """Whether a record was written before the checkpoint of this (round, step).

    The numbers of the step itself and its plan are; its end and the guard's result come after.
    """
    where = (record["round"], record["step"])
    return where < point or (where == point and point[1] >= 0 and record.get("event") in (None, "planned"))


class SilentTracker(Tracker):
    """For the ranks that do not write."""

    def __init__(self) -> None:
        self._board = None

    def sync(self) -> None:
        """Nothing was written."""

    def close(self) -> None:
        """Nothing was opened."""

    def _write(self, record: dict[str, Any]) -> None:
        pass


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All records of a run, in order."""
    path = folder / "metrics.jsonl"
    return list(_whole_records(path.read_text(errors="replace"))) if path.exists() else []


def _whole_records(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # a run that is being written, or was killed, may end in half a line
        if isinstance(record, dict) and {"round", "step"} <= record.keys():
            yield record


def _open_board(folder: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))

"""The log of a run: metrics.jsonl, and TensorBoard where it is installed."""

import importlib.util
import json
import logging
import os
from pathlib import Path
from typing import Any

from insclr.files import whole_file

_log = logging.getLogger(__name__)


class Tracker:
    """Appends one JSON line a record; every record has a round and a step, some an event."""

    def __init__(self, folder: Path, after: tuple[int, int] | None = None) -> None:
        """Open the run's log. `after` = (round, step) of the checkpoint a resumed run goes on from."""
        self.path = folder / "metrics.jsonl"
        if after is not None and self.path.exists():
            self._drop_after(after)
        elif self.path.exists():
            self.path.unlink()
        self._file = self.path.open("a")
        self._board = _open_board(folder / "tensorboard")

    def step(self, round_number: int, step: int, **values: float) -> None:
        """Note the numbers of a training step."""
        self._write({"round": round_number, "step": step, **values})
        for name, value in values.items():
            self._to_board("add_scalar", f"round-{round_number}/{name}", value, step)

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
        self._to_board("close")

    def _to_board(self, method: str, *arguments: Any) -> None:
        """Call TensorBoard's writer. Its curves are a copy of the log: without a disk for them the run goes on."""
        if self._board is None:
            return
        try:
            getattr(self._board, method)(*arguments)
        except OSError as error:
            _log.warning("TensorBoard's curves end here: %s", error)
            self._board = None

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def _drop_after(self, point: tuple[int, int]) -> None:
        """Drop what an interrupted run wrote after its last checkpoint: it will be written again."""
        with whole_file(self.path) as scratch, scratch.open("w") as file:
            for record in read_metrics(self.path.parent):
                where = (record["round"], record["step"])
                # The numbers of the step itself and its plan come before the checkpoint, its end and the guard after.
                of_step = where == point and point[1] >= 0 and record.get("event") in (None, "planned")
                if where < point or of_step:
                    file.write(f"{json.dumps(record)}\n")


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
    path, records = folder / "metrics.jsonl", []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a run that is being written, or was killed, may end in half a line
        if isinstance(record, dict) and all(isinstance(record.get(name), int) for name in ("round", "step")):
            records.append(record)
    return records


def _open_board(folder: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    try:
        return SummaryWriter(str(folder))
    except OSError as error:
        _log.warning("there are no curves for TensorBoard: %s", error)
        return None

"""Write and read checkpoints: atomically, the last few kept, without running code from a file."""

import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from insclr.errors import UserError
from insclr.files import whole_file

logger = logging.getLogger(__name__)
_NAME = re.compile(r"step-\d+\.pt")


def save_checkpoint(
    folder: Path, step: int, state: dict[str, Any], keep: int, files: Mapping[str, Path] | None = None
) -> None:
    """Write `state` as folder/step-N.pt with copies of `files` beside it; remove all but the last `keep`."""
    try:
        for name, file in (files or {}).items():
            with whole_file(beside(folder, step, name)) as scratch:
                shutil.copyfile(file, scratch)
        # Last, so that a checkpoint that is there has all its copies.
        with whole_file(folder / f"step-{step:07d}.pt") as scratch:
            torch.save(state, scratch)
    except OSError as error:
        raise UserError(
            f"The checkpoint in {folder} could not be written ({error.strerror or error}). "
            f"Files written so far are intact. Free some space and run the same command with --resume."
        ) from error
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)
    kept = {path.stem for path in list_checkpoints(folder)}
    for copy in folder.glob("step-*.bank"):
        if copy.name.split(".")[0] not in kept:
            copy.unlink(missing_ok=True)


def beside(folder: Path, step: int, name: str) -> Path:
    """Where the checkpoint of `step` keeps its copy of a memory-mapped bank."""
    return folder / f"step-{step:07d}.{name}.bank"


def copies_beside(folder: Path, step: int) -> dict[str, Path]:
    """The copies of memory-mapped banks that the checkpoint of `step` has, by the bank's name."""
    return {file.name.split(".")[1]: file for file in folder.glob(f"step-{step:07d}.*.bank")}


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a round, oldest first."""
    return sorted(path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name))


def load_latest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, or None where there is none."""
    return next((state for _, state in _readable(folder)), None)


def latest_step(folder: Path) -> int | None:
    """The step of the checkpoint that `load_latest` gives, without reading its tensors."""
    return next((int(path.stem.removeprefix("step-")) for path, _ in _readable(folder, mmap=True)), None)


def _readable(folder: Path, *, mmap: bool = False) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The checkpoints that can be read, newest first."""
    for path in reversed(list_checkpoints(folder)):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
            if not isinstance(state, dict):
                raise TypeError(f"holds {type(state).__name__}")
        # Garbage makes torch's reader raise nearly anything: UnpicklingError, KeyError, AssertionError, ...
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            logger.warning("%s cannot be read (%s): trying the one before it", path, reason)
            continue
        yield path, state

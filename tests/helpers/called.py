"""A command as a user types it, run in the process of the tests."""

import sys
from pathlib import Path

import pytest

from insclr.cli import main


def status_of(*arguments: str | Path) -> int:
    """The exit status of `insclr` with these arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["insclr", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Status, output and messages of `insclr` with these arguments."""
    status = status_of(*arguments)
    shown = capsys.readouterr()
    return status, shown.out, shown.err

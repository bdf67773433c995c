"""What insclr brings along is written down, with versions and licences."""

import re
from collections.abc import Callable
from pathlib import Path

from helpers.licences import packages

_DOC = Path(__file__).parents[2] / "docs" / "research" / "packages.md"


def test_every_package_is_listed(note: Callable[[str, str, str], None]) -> None:
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \| \S+ \| \S", _DOC.read_text(), re.MULTILINE))
    missing = sorted(set(packages()) - listed)
    assert missing == [], "run tests/helpers/licences.py"
    note("packages of all extras, however far down", f"{len(packages())} listed", "all, with licence")

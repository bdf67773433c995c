"""Stress tests: how often each is tried, and a table of the results.

`make attack` takes minutes; with INSCLR_SOAK=1 (`make soak`) the numbers are those of docs/research/stress-tests.md.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

SOAK = os.environ.get("INSCLR_SOAK") == "1"
_ROWS: list[tuple[str, str, str]] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.attack)


@pytest.fixture(scope="session")
def note() -> Callable[[str, str, str], None]:
    """Put a line into the table: what was tried, what came out, what is asked."""
    return lambda what, found, bar: _ROWS.append((what, found, bar))


@pytest.fixture(scope="session")
def soak() -> bool:
    """Whether the long numbers are wanted."""
    return SOAK


@pytest.fixture(scope="session")
def kills(soak: bool) -> int:
    """How often a command is killed."""
    return 25 if soak else 4


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 drawn things, 10 photos each."""
    from helpers.killing import whole
    from insclr_demo import draw_collection

    folder = tmp_path_factory.mktemp("kills")
    draw_collection(folder / "c", things=20, views=10, size=160, seed=0)
    whole("recipes")  # starts the server that forks, so that no time measured later holds its imports
    return folder / "c" / "images"


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    if _ROWS:
        terminalreporter.write_line("\n| tried | found | bar |\n|---|---|---|")
        for row in _ROWS:
            terminalreporter.write_line(f"| {' | '.join(row)} |")

"""What the README and the docs tell people to type works as it stands there."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from insclr.cli import app, main

_ROOT = Path(__file__).parents[1]
_PAGES = [*sorted(_ROOT.glob("*.md")), *sorted((_ROOT / "docs").glob("*.md"))]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def _commands() -> list[tuple[str, str]]:
    lines = [
        (page.name, line)
        for page in _PAGES
        for block in _blocks(page, "console")
        for line in block.splitlines()
    ]
    return [(name, line[2:].split("  #")[0].strip()) for name, line in lines if line.startswith("$ insclr")]


def _call(arguments: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["insclr", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("line", [line for _, line in _commands()], ids=[name for name, _ in _commands()])
def test_every_command_shown_exists_with_its_options(line: str) -> None:
    from insclr.cli import calibrate, evaluation, names, photos, search, sharing, training  # noqa: F401  (they register their commands)

    group = typer.main.get_command(app)
    _, name, *arguments = shlex.split(line)
    command = group.commands[name]  # type: ignore[attr-defined]
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    # Parsing alone: a wrong option or a missing argument is an error here, the page in the test's name.
    command.make_context(name, arguments)


def test_links_between_pages_lead_somewhere() -> None:
    for page in _PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_story_of_the_readme(
    small_collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check, train, index and search, as the section on one's own photos says, on a few pictures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PHOTOS").symlink_to(small_collection)
    (python,) = _blocks(_ROOT / "README.md", "python")
    namespace: dict[str, Any] = {}
    exec(compile(python, "README.md", "exec"), namespace)
    assert namespace["matches"][0].path == "thing3-1.png"  # a photo finds itself
    assert _call(["check", "PHOTOS"]) == 0
    assert _call(["index", "RUN", "PHOTOS", "--store", "STORE"]) == 0  # the model by its other name
    capsys.readouterr()
    assert _call(["search", "STORE", "PHOTOS/thing3-1.png", "--top", "3"]) == 0
    assert "thing3-1.png" in capsys.readouterr().out  # a photo finds itself
    assert (tmp_path / "RUN" / "report.html").exists()

"""README and docs: commands, recipes and links work; pages for users are short and have one sentence a line."""

import importlib
import itertools
import pkgutil
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import insclr.cli
from helpers.called import status_of
from insclr.cli import app
from insclr.recipe import load_recipe

_ROOT = Path(__file__).parents[1]
_PAGES = [*sorted(_ROOT.glob("*.md")), *sorted((_ROOT / "docs").rglob("*.md"))]
_FOR_USERS = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
_DECISIONS = sorted((_ROOT / "docs" / "decisions").glob("*.md"))
# A sentence ends, and another begins on the same line.
_SECOND_SENTENCE = re.compile(r"(?<!\.\.)(?<!et al)[.!?][*\"')]*\s+[*\"'(\[`]*[A-Z]")


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


@pytest.mark.parametrize("line", [line for _, line in _commands()], ids=[name for name, _ in _commands()])
def test_every_command_shown_exists_with_its_options(line: str) -> None:
    for module in pkgutil.iter_modules(insclr.cli.__path__):  # they register their commands
        importlib.import_module(f"insclr.cli.{module.name}")

    group = typer.main.get_command(app)
    _, name, *arguments = shlex.split(line)
    command = group.commands[name]  # type: ignore[attr-defined]
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    # Parsing alone: a wrong option or a missing argument is an error here, the page in the test's name.
    command.make_context(name, arguments)


@pytest.mark.parametrize("line", [line for _, line in _commands() if line.startswith("insclr train")])
def test_every_training_shown_has_a_recipe_that_takes_its_settings(line: str) -> None:
    arguments = shlex.split(line)
    after = list(itertools.pairwise(arguments))
    recipe = next((value for option, value in after if option == "--recipe"), "default")
    load_recipe(recipe, tuple(value for option, value in after if option == "--set"))


def test_recipes_shown_can_be_read(tmp_path: Path) -> None:
    blocks = [block for page in (_ROOT / "docs").rglob("*.md") for block in _blocks(page, "toml")]
    assert blocks
    for block in blocks:
        (tmp_path / "recipe.toml").write_text(block)
        load_recipe(tmp_path / "recipe.toml")


def test_every_extra_is_explained() -> None:
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.+?`) \|", (_ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE)
    assert set(extras) == {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_pages_for_users_have_at_most_15000_words() -> None:
    assert sum(len(page.read_text().split()) for page in _FOR_USERS) <= 15_000


@pytest.mark.parametrize("page", [*_FOR_USERS, *_DECISIONS], ids=lambda page: page.name)
def test_a_line_has_one_sentence(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line.lstrip("# 0123456789.") for line in text.splitlines()]  # without the number of a step
    prose = [line for line in lines if not line.startswith(("|", "!["))]
    assert [line for line in prose if _SECOND_SENTENCE.search(line)] == []


@pytest.mark.parametrize("page", _DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_short_and_has_its_three_parts(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert len(text.split()) <= 200


def test_the_architecture_page_lists_every_package_and_dependency() -> None:
    text = (_ROOT / "docs" / "architecture.md").read_text()
    for folder in (_ROOT / "src" / "insclr").iterdir():
        assert not folder.is_dir() or folder.name == "__pycache__" or f"`{folder.name}/`" in text, folder
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    required = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.match(r"[\w-]+", one)[0] for group in required for one in group} - {"insclr"}  # type: ignore[index]
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_the_code_that_a_page_names_exists(page: Path) -> None:
    roots = (_ROOT, _ROOT / "src", _ROOT / "src" / "insclr")
    named = set(re.findall(r"`([\w.]+/[\w./-]+\.py)`", page.read_text()))
    assert [path for path in named if "toy" not in path and not any((r / path).exists() for r in roots)] == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in _PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)", page.read_text()):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(there), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings: lower case, words joined by hyphens, other signs left out."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_the_story_of_the_readme(
    small_collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check, train, index and search on a few drawn photos, as in the section on your own photos."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PHOTOS").symlink_to(small_collection)
    (python,) = _blocks(_ROOT / "README.md", "python")
    namespace: dict[str, Any] = {}
    exec(compile(python, "README.md", "exec"), namespace)
    assert namespace["matches"][0].path == "thing3-1.png"  # a photo finds itself
    assert status_of("check", "PHOTOS") == 0
    assert status_of("index", "RUN", "PHOTOS", "--store", "STORE") == 0  # the model by its other name
    capsys.readouterr()
    assert status_of("search", "STORE", "PHOTOS/thing3-1.png", "--top", "3") == 0
    assert "thing3-1.png" in capsys.readouterr().out  # a photo finds itself
    assert (tmp_path / "RUN" / "report.html").exists()


@pytest.mark.slow
def test_the_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/tutorial.md on drawn photos, command by command, except the server, which does not end."""
    monkeypatch.chdir(tmp_path)
    printed = {}
    drawn_part = (_ROOT / "docs" / "tutorial.md").read_text().split("\n## Your own photos\n")[0]
    for line in re.findall(r"^\$ (insclr (?!serve).*)$", drawn_part, re.MULTILINE):
        assert status_of(*shlex.split(line)[1:]) == 0, line
        printed[line.split()[1]] = capsys.readouterr().out
    before, after = (
        float(re.search(rf"^{name} +([\d.]+)", printed["compare"], re.MULTILINE)[1])  # type: ignore[index]
        for name in ("pretrained:efficientnet_lite0", "RUN")
    )
    assert after > before + 5  # the page shows 14
    assert re.findall(r"maybe|sure", printed["search"])
    assert (tmp_path / "RUN" / "report.html").exists()
    assert (tmp_path / "difference.html").exists()


@pytest.mark.parametrize(
    "page", ["docs/security.md", "docs/research/stress-tests.md", "docs/architecture.md"]
)
def test_every_test_named_as_evidence_exists(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (_ROOT / page).read_text())
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (_ROOT / file).is_file() or f"def {test}" not in (_ROOT / file).read_text()
    ]
    assert missing == []

"""The documentation site: the menu has every page, generated pages are complete, nothing loads from another host."""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import insclr

_ROOT = Path(__file__).parents[1]
_LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """The hook that generates pages, loaded as mkdocs loads it. mkdocs itself is not needed."""
    spec = importlib.util.spec_from_file_location("site_hook", _ROOT / ".ci" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_menu_has_every_page_once(site: ModuleType) -> None:
    menu = re.findall(r"^ +- .+: (\S+\.md)$", (_ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    docs = _ROOT / "docs"
    written = [page.relative_to(docs).as_posix() for page in docs.rglob("*.md")]
    generated = [name for name in site.generate_pages() if name.endswith(".md")]
    assert sorted(menu) == sorted([*written, *generated])


def test_the_reference_has_every_command_and_its_options(site: ModuleType) -> None:
    page = site.cli_page()
    shown = set(re.findall(r"^### insclr (.+)$", page, re.MULTILINE))
    help_text = subprocess.run(
        [sys.executable, "-m", "insclr", "--help"], capture_output=True, text=True, check=True
    )
    listed = set(re.findall(r"^  ([a-z][a-z-]*)  ", help_text.stdout.split("Commands:")[1], re.MULTILINE))
    assert listed
    assert {name.split()[0] for name in shown} == listed
    assert {"names list", "names export", "names import", "answers undo"} <= shown
    training = page.split("### insclr train\n")[1].split("\n### ")[0]
    for option in ("--out", "--recipe", "--minutes", "--set", "--resume", "--answers"):
        assert f"<code>{option}" in training
    assert "<code>--token " not in page  # it is hidden: a token on the command line is refused
    assert "| `fast` | your own photos in minutes" in page


def test_pages_of_the_root_link_to_pages_of_the_site(site: ModuleType) -> None:
    start = site.generate_pages()["index.md"]
    assert "](tutorial.md#install)" in start
    assert "](contributing.md)" in start
    assert "](images/search.png)" in start
    assert "](docs/" not in start
    assert site.relink_docs_page("[a](../README.md#demo) [b](faq.md) [c](../NOTICE)") == (
        "[a](index.md#demo) [b](faq.md) [c](NOTICE.txt)"
    )
    assert site.relink_docs_page("[a](../../README.md) [b](../faq.md) [c](results.md)", depth=1) == (
        "[a](../index.md) [b](../faq.md) [c](results.md)"
    )


def test_links_of_generated_pages_lead_to_files_of_the_site(site: ModuleType) -> None:
    generated = site.generate_pages()
    for name, text in generated.items():
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text) if name.endswith(".md") else ():
            assert target in generated or (_ROOT / "docs" / target).is_file(), f"{name}: {target}"


def test_the_reference_of_python_has_every_public_name() -> None:
    page = (_ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^::: insclr\.(\w+)$", page, re.MULTILINE)) == sorted(insclr.__all__)


class _Loads(HTMLParser):
    """What a page has the browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _LOADED and values.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(values.get(_LOADED[tag]) or "")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site is built by `make docs`: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        loads = _Loads()
        loads.feed(page.read_text())
        assert not [one for one in loads.found if re.match(r"(https?:)?//", one)], page.name
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text()), style.name
    reference = (tmp_path / "api.html").read_text()
    for name in ("train", "search", "evaluate", "answers"):
        assert f'id="insclr.{name}"' in reference
    assert "<blockquote>" not in reference  # examples are code, not quotations

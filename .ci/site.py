"""mkdocs hook: generates the pages of the site that are not in docs/ (mkdocs.yml names this file).

The start page is README.md, the pages for contributors are the files at the root, and the command-line reference is
generated from the commands. So no text exists twice.
"""

import html
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
# Files at the root that pages link to, and their names on the site.
_AT_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CITATION.cff": "CITATION.cff",
    "LICENSE": "LICENSE.txt",
    "NOTICE": "NOTICE.txt",
}
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
_IN_ORDER = (
    "photos",
    "training",
    "stores",
    "search",
    "name_commands",
    "names",
    "calibrate",
    "evaluation",
)  # modules of commands, as people need them
_CLI_INTRO = """# Command line

This page is generated from the commands. `insclr COMMAND --help` prints the same text.
A mistake ends with one sentence that says what to do, and exit status 2.
`insclr --install-completion` completes commands in your shell.

`MODEL` is a run folder, a model file, or `pretrained:NAME` for a [backbone](backbones.md). `STORE` is a folder or a
[Milvus](large-collections.md#milvus) address.
"""

_RECIPES_INTRO = """## Recipes

`insclr train --recipe NAME` trains with one of these. `insclr recipes NAME` prints one with every setting.

| recipe | what it is |
|---|---|"""


def generate_pages() -> dict[str, str]:
    """Every file of the site that is not in docs/, by its name."""
    pages = {name: (_ROOT / source).read_text() for source, name in _AT_ROOT.items()}
    pages = {name: _relink_root_page(text) if name.endswith(".md") else text for name, text in pages.items()}
    notebooks = {f"notebooks/{file.name}": file.read_text() for file in (_ROOT / "notebooks").glob("*.ipynb")}
    return pages | notebooks | {"cli.md": cli_page()}


def _relink_root_page(text: str) -> str:
    """Rewrite the links of a page at the root to addresses of the site."""

    def relink(link: re.Match[str]) -> str:
        target = link[1]
        return f"]({_AT_ROOT.get(target, target.removeprefix('docs/'))}"

    return _LINK.sub(relink, text)


def relink_docs_page(text: str, depth: int = 0) -> str:
    """Rewrite the links from a page in docs/, `depth` folders down, to files at the root."""
    up = "../" * depth

    def relink(link: re.Match[str]) -> str:
        name = _AT_ROOT.get(link[1].removeprefix(up + "../"))
        return f"]({up}{name}" if name else link[0]

    return _LINK.sub(relink, text)


def cli_page() -> str:
    """Reference of all commands, one heading a module, and the list of recipes."""
    import typer

    import insclr.cli

    names = [module.name for module in pkgutil.iter_modules(insclr.cli.__path__)]
    names.sort(key=lambda name: (*_IN_ORDER, name).index(name))
    modules = [importlib.import_module(f"insclr.cli.{name}") for name in names]
    group: Any = typer.main.get_command(insclr.cli.app)
    commands = list(_commands(group, group.make_context("insclr", [], resilient_parsing=True)))
    overview = ["| command | what it does |", "|---|---|"]
    text: list[str] = []
    for module in modules:
        own = [one for one in commands if one[0].callback.__module__ == module.__name__]
        text += ["", f"## {(module.__doc__ or '').split(':')[0].strip()}", ""] if own else []
        text += [_command_text(command, context) for command, context in own]
        overview += [_command_row(command, context) for command, context in own]
    return "\n".join([_CLI_INTRO, *overview, *text, _RECIPES_INTRO, *_recipe_rows(), ""])


def _recipe_rows() -> list[str]:
    from insclr.recipe import load_recipe, recipe_names

    return [f"| `{name}` | {_cell(load_recipe(name).about)} |" for name in recipe_names()]


def _commands(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Every visible command with its context, including those of groups."""
    for name, command in group.commands.items():
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        if hasattr(command, "commands"):
            yield from _commands(command, inner)
        elif not command.hidden:
            yield command, inner


def _command_text(command: Any, context: Any) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [f"| <code>{_cell(name)}</code> | {_cell(text)} |" for name, text in filter(None, records)]
    rows = [row for row in rows if "--help" not in row]
    heading = [f"### {context.command_path}", "", inspect.cleandoc(command.help or ""), ""]
    return "\n".join([*heading, "```text", usage, "```", "", "| option | meaning |", "|---|---|", *rows, ""])


def _command_row(command: Any, context: Any) -> str:
    path, summary = context.command_path, (command.help or "").split("\n\n")[0]
    return f"| [`{path}`](#{path.replace(' ', '-')}) | {_cell(' '.join(summary.split()))} |"


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;")


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: add the generated pages."""
    from mkdocs.structure.files import File

    for name, text in generate_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with every page."""
    return relink_docs_page(markdown, page.file.src_uri.count("/"))

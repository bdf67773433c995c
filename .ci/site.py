"""Pages of the documentation site that are made when it is built: mkdocs.yml names this file as a hook.

The start page is README.md, the pages for contributors are the files at the root, and the reference of the command
line comes from the commands themselves. So none is written twice, and none can be out of date.
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
# Files at the root that pages link to, and what they are called on the site.
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
    "search",
    "names",
    "calibrate",
    "evaluation",
)  # modules of commands, as people need them
_CLI_INTRO = """# Command line

Made from the commands themselves: `insclr COMMAND --help` says the same. A mistake is answered with what to do and
exit status 2; nothing is left half-written. `insclr --install-completion` completes commands in your shell.

`MODEL` is a run folder, a model file, or `pretrained:NAME` for a [backbone](backbones.md). `STORE` is a folder or a
[Milvus](large-collections.md#milvus) address.
"""

_RECIPES_INTRO = """## Recipes

What `insclr train --recipe NAME` takes; `insclr recipes NAME` prints one with every setting.

| recipe | what it is |
|---|---|"""


def made_pages() -> dict[str, str]:
    """Every file that the site has and the folder docs has not, by its name."""
    pages = {name: (_ROOT / source).read_text() for source, name in _AT_ROOT.items()}
    pages = {name: _of_root(text) if name.endswith(".md") else text for name, text in pages.items()}
    notebooks = {f"notebooks/{file.name}": file.read_text() for file in (_ROOT / "notebooks").glob("*.ipynb")}
    return pages | notebooks | {"cli.md": cli_page()}


def _of_root(text: str) -> str:
    """A page of the root with its links as they are on the site."""

    def moved(link: re.Match[str]) -> str:
        target = link[1]
        return f"]({_AT_ROOT.get(target, target.removeprefix('docs/'))}"

    return _LINK.sub(moved, text)


def to_root(text: str) -> str:
    """A page of docs with its links to files at the root as they are on the site."""
    return _LINK.sub(lambda link: f"]({_AT_ROOT.get(link[1].removeprefix('../'), link[1])}", text)


def cli_page() -> str:
    """The reference of all commands, those of one module under one heading, and the list of recipes."""
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
    """Every command that is shown, those of groups too, each with its context."""
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
    """Called by mkdocs: add what is made."""
    from mkdocs.structure.files import File

    for name, text in made_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with every page."""
    return to_root(markdown)

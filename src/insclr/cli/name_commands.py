"""Commands on feedback: names, answers, learn."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Literal

import typer

from insclr.cli import app, tell_when_stopped
from insclr.cli.flags import StoreName, command
from insclr.options import ComputeOptions

names_app = typer.Typer(no_args_is_help=True, help="Names of things: list, export, import.")
answers_app = typer.Typer(no_args_is_help=True, help="Answers of people: list, undo, proof.")
app.add_typer(names_app, name="names")
app.add_typer(answers_app, name="answers")


@names_app.command("list")
def list_names(store: StoreName) -> None:
    """Every thing with the number of its images, the largest first."""
    from insclr.feedback.names import build_gallery
    from insclr.store import open_store

    with closing(open_store(store)) as opened:
        found = build_gallery(opened)
    for thing in found.things:
        marks = (" (uncertain)" if thing.uncertain else "") + (" (hidden)" if thing.hidden else "")
        marks += f" ({len(thing.proposed)} more look like it: check)" if thing.proposed else ""
        typer.echo(f"{len(thing.rows):6}  {thing.name or '-'}{marks}")
    typer.echo(f"{len(found.things)} things; {len(found.alone)} images match nothing")


@names_app.command("export")
def export_names(
    store: StoreName,
    out: Annotated[Path, typer.Option(help="A .csv file, or a folder for links or sidecars.")],
    kind: Annotated[
        Literal["csv", "links", "xmp"],
        typer.Option("--as", help="csv; links: a folder a name; xmp: a sidecar an image."),
    ] = "csv",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a table or sidecars that exist.")
    ] = False,
) -> None:
    """Write the names of images, those that joined by their score among them."""
    from insclr.feedback import name_files
    from insclr.store import open_store

    forms = {"csv": name_files.export_csv, "links": name_files.export_links, "xmp": name_files.export_xmp}
    with closing(open_store(store)) as opened:
        count = forms[kind](opened, out, replace=replace)
    typer.echo(f"{count} named images: {out}")


@names_app.command("import")
def import_names(
    store: StoreName,
    source: Annotated[
        str,
        typer.Argument(
            help="A CSV (path, name), a folder of XMP sidecars, another store, or the word folders: the images' own."
        ),
    ],
) -> None:
    """Import names: from folders, a CSV, XMP sidecars, or another store with all its names and answers."""
    from insclr.data.table import one_line
    from insclr.feedback import name_files
    from insclr.store import open_store

    with closing(open_store(store)) as opened:
        report = name_files.import_names(opened, source)
    typer.echo("\n".join(map(one_line, report.summary().splitlines())))


@answers_app.command("list")
def list_answers(store: StoreName) -> None:
    """All names and answers, oldest first; contradictions at the end."""
    from insclr.data.table import one_line
    from insclr.feedback.entries import describe_act
    from insclr.feedback.feedback import read_feedback
    from insclr.feedback.links import Links
    from insclr.store import open_store

    with closing(open_store(store)) as opened:
        feedback = read_feedback(opened)
        paths = {row.image.hash: path for path, row in opened.rows_by_path().items()}
    for entry in feedback.entries:
        typer.echo(one_line(f"{entry.id}  {describe_act([entry], feedback, paths)}"))
    for found in Links(feedback.links).find_unresolved():
        chain = ", ".join(dict.fromkeys(link.source for link in found.chain))
        typer.echo(f"contradiction: {found.link.source} does not fit {chain}")


@answers_app.command("undo")
def undo_answer(
    store: StoreName,
    entry: Annotated[
        str, typer.Argument(help="An entry that `answers list` shows; empty = the last one.")
    ] = "",
) -> None:
    """Undo a name or an answer."""
    from insclr.data.table import one_line
    from insclr.feedback.entries import describe_act, undo
    from insclr.feedback.feedback import read_feedback
    from insclr.store import open_store

    with closing(open_store(store)) as opened:
        taken = undo(opened, entry)
        feedback = read_feedback(opened)
    typer.echo(one_line(f"undone: {describe_act(taken, feedback)}"))


@answers_app.command("proof")
def proof(
    store: StoreName,
    before: Annotated[
        str, typer.Option(help="The store of the model before, where it is not in STORE itself.")
    ] = "",
) -> None:
    """How precise search is, by the judged results of the fair sample; the run's report then shows it too."""
    from insclr.report.run_report import report_proof
    from insclr.store import open_store
    from insclr.store.store_models import model_before

    earlier = before or model_before(store)
    with ExitStack() as opened:
        stores = [opened.enter_context(closing(open_store(one))) for one in (store, earlier) if one]
        titles = ("Now", "Before")[: len(stores)]
        for title, sentence in zip(titles, report_proof(stores, titles), strict=True):
            typer.echo(f"{title:<7} {sentence}")


@command
def learn(
    store: StoreName,
    options: ComputeOptions,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the run and a new store; else STORE gets the model.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="A recipe's name or a TOML file.")] = "fast",
    change: Annotated[list[str] | None, typer.Option("--set", help="key=value of the recipe.")] = None,
) -> None:
    """Learn from the names and answers of a store; it is then searched with the new model, and keeps the old one."""
    tell_when_stopped(lambda: f"Files in {out or store} are intact. Run the same command to continue.")
    from insclr.jobs.learn import learn as learn_from
    from insclr.jobs.learn import models as models_of

    done = learn_from(store, out, recipe, tuple(change or ()), options.device, options.engine)
    search = f"search  insclr serve {done.store}" + (f" --before {store}" if out else "")
    back = "" if out else f"\nback    insclr models {store} --use {models_of(store).before}"
    typer.echo(f"{done.report.summary()}\n\n{search}{back}")


@command
def models(
    store: StoreName,
    use: Annotated[int, typer.Option(help="Search with this model from now on.", min=0)] = 0,
) -> None:
    """List the models of a store, or go back to one; names and answers stay."""
    from insclr.jobs.learn import models as models_of

    found = models_of(store, use)
    for number in sorted({1, found.before, found.current} - {0}):
        mark = "current" if number == found.current else "before" if number == found.before else "first"
        typer.echo(f"{number:3}  {mark}")

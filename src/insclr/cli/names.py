"""Commands about what people said: names, answers, learn."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from insclr.cli import app, say_when_stopped
from insclr.cli.evaluation import Device, EngineOption
from insclr.cli.search import StoreName

names_app = typer.Typer(no_args_is_help=True, help="Names of things: list, export, import.")
answers_app = typer.Typer(no_args_is_help=True, help="What people said: list, undo, proof.")
app.add_typer(names_app, name="names")
app.add_typer(answers_app, name="answers")


class Export(StrEnum):
    """What names are written as."""

    csv = "csv"
    links = "links"
    xmp = "xmp"


@names_app.command("list")
def list_names(store: StoreName) -> None:
    """Every thing with its photos, the largest first."""
    from insclr.feedback.things import build_gallery
    from insclr.store import open_store

    opened = open_store(store)
    try:
        found = build_gallery(opened)
    finally:
        opened.close()
    for thing in found.things:
        marks = (" (uncertain)" if thing.uncertain else "") + (" (hidden)" if thing.hidden else "")
        typer.echo(f"{len(thing.rows):6}  {thing.name or '-'}{marks}")
    typer.echo(f"{len(found.things)} things; {len(found.alone)} photos match nothing")


@names_app.command("export")
def export_names(
    store: StoreName,
    out: Annotated[Path, typer.Option(help="A .csv file, or a folder for links or sidecars.")],
    kind: Annotated[
        Export, typer.Option("--as", help="csv; links: a folder a name; xmp: a sidecar a photo.")
    ] = Export.csv,
) -> None:
    """Write the names of photos, those that joined by their score among them."""
    from insclr.feedback import names
    from insclr.store import open_store

    write = {Export.csv: names.export_csv, Export.links: names.export_links, Export.xmp: names.export_xmp}[
        kind
    ]
    opened = open_store(store)
    try:
        count = write(opened, out)
    finally:
        opened.close()
    typer.echo(f"{count} named photos: {out}")


@names_app.command("import")
def import_names(
    store: StoreName,
    source: Annotated[
        str,
        typer.Argument(help="A CSV (path, name), another store, or the word folders: the photos' folders."),
    ],
) -> None:
    """Take over names: from folders, a CSV, or another store with all that was said in it."""
    from insclr.feedback import names
    from insclr.store import open_store

    opened = open_store(store)
    try:
        typer.echo(f"{names.import_names(opened, source)} photos named")
    finally:
        opened.close()


@answers_app.command("list")
def list_answers(store: StoreName) -> None:
    """What people said and what still holds, oldest first; contradictions at the end."""
    from insclr.data.table import one_line
    from insclr.feedback.entries import describe_act
    from insclr.feedback.feedback import read_feedback
    from insclr.feedback.links import Links
    from insclr.store import open_store

    opened = open_store(store)
    try:
        feedback = read_feedback(opened)
        paths = {row.image.hash: path for path, row in opened.rows_by_path().items()}
    finally:
        opened.close()
    for entry in feedback.entries:
        typer.echo(one_line(f"{entry.id}  {describe_act([entry], paths)}"))
    for found in Links(feedback.links).unresolved():
        chain = ", ".join(dict.fromkeys(link.source for link in found.chain))
        typer.echo(f"contradiction: {found.link.source} does not fit {chain}")


@answers_app.command("undo")
def undo_answer(
    store: StoreName,
    entry: Annotated[
        str, typer.Argument(help="An entry that `answers list` shows; empty = the last one.")
    ] = "",
) -> None:
    """Take back what was said."""
    from insclr.data.table import one_line
    from insclr.feedback.entries import describe_act, undo
    from insclr.store import open_store

    opened = open_store(store)
    try:
        taken = undo(opened, entry)
    finally:
        opened.close()
    typer.echo(one_line(f"undone: {describe_act(taken)}"))


@answers_app.command("proof")
def proof(
    store: StoreName,
    before: Annotated[str, typer.Option(help="The store of the model before.")] = "",
) -> None:
    """How precise search is, by the judged results of the fair sample; the run's report then says it too."""
    from insclr.report.proof_section import report_proof
    from insclr.store import open_store

    stores = [open_store(one) for one in (store, before) if one]
    titles = ("Now", "Before")[: len(stores)]
    try:
        for title, sentence in zip(titles, report_proof(stores, titles), strict=True):
            typer.echo(f"{title:<7} {sentence}")
    finally:
        for one in stores:
            one.close()


@app.command()
def learn(
    store: StoreName,
    out: Annotated[Path, typer.Option(help="A new folder for the run and the new store.")],
    recipe: Annotated[str, typer.Option(help="A recipe's name or a TOML file.")] = "fast",
    change: Annotated[list[str] | None, typer.Option("--set", help="key=value of the recipe.")] = None,
    device: Device = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Learn from the names and answers of a store: a new model and a new store of its photos."""
    say_when_stopped(lambda: f"{out} keeps what was learned: the same command goes on.")
    from insclr.jobs.learn import learn as learn_from

    done = learn_from(store, out, recipe, tuple(change or ()), device, engine)
    typer.echo(f"{done.report.summary()}\n\nsearch  insclr serve {done.store} --before {store}")

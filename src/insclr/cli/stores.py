"""Commands on stores: search, duplicates, bursts, cluster, calibrate, serve, mcp; and the demo."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insclr.cli.flags import StoreName, command
from insclr.errors import UserError
from insclr.options import SearchOptions, StoreModelOptions
from insclr.web.settings import ServeOptions

if TYPE_CHECKING:
    from insclr.data.decode import Box


@command
def demo_data(
    out: Annotated[Path, typer.Argument(help="Folder to draw the collection into.")],
    things: Annotated[int, typer.Option(help="How many different instances.")] = 60,
    views: Annotated[int, typer.Option(help="Images of each; 0 = 25, with --clutter 10.")] = 0,
    size: Annotated[int, typer.Option(help="Side of an image, in pixels.")] = 224,
    seed: Annotated[int, typer.Option(help="One seed, one collection.")] = 0,
    clutter: Annotated[
        bool,
        typer.Option(
            "--clutter", help="Busy images of twice the side, the instance small in them, with boxes."
        ),
    ] = False,
) -> None:
    """Draw a collection to try InsCLR on: no download, always the same."""
    from insclr_demo import QUERIES, draw_collection

    views = views or (10 if clutter else 25)
    labels = draw_collection(out, things=things, views=views, size=size, seed=seed, clutter=clutter)
    queries = f" and {things * QUERIES} to search for" if clutter else ""
    typer.echo(f"{things * views} images of {things} things{queries}: {labels}")


@command
def search(
    store: StoreName,
    query: Annotated[Path, typer.Argument(help="An image, or a folder or list of images (JSON lines out).")],
    options: SearchOptions,
    box: Annotated[str, typer.Option(help="Part of the image: x1,y1,x2,y2 in pixels.")] = "",
    unlike: Annotated[
        list[Path] | None, typer.Option(help="An image of another instance: what is like it comes later.")
    ] = None,
    regions: Annotated[bool, typer.Option("--regions", help="The same as --ranking regions.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Find every image of the instance in an image."""
    from insclr.data.given import is_single
    from insclr.feedback.feedback import read_known
    from insclr.retrieval.search import search_files

    if regions:
        options = replace(options, ranking="regions")
    asked = search_files(store, query, options, _parse_box(box), unlike=unlike or (), read_known=read_known)
    for found in asked:
        if as_json or not is_single(query):
            typer.echo(json.dumps(found.to_json()))
        else:
            typer.echo(found.table())


def _parse_box(text: str) -> "Box | None":
    if not text:
        return None
    try:
        x1, y1, x2, y2 = (float(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"--box {text} is not four numbers x1,y1,x2,y2 in pixels.") from None
    return x1, y1, x2, y2


@command
def duplicates(
    store: StoreName, as_json: Annotated[bool, typer.Option("--json", help="One JSON line a group.")] = False
) -> None:
    """Groups of near-identical images."""
    from insclr.api import duplicates as find_duplicates
    from insclr.data.table import one_line

    groups = find_duplicates(store)
    for group in groups:
        typer.echo(json.dumps(group) if as_json else "\n  ".join(map(one_line, group)))
    if not as_json:
        typer.echo(f"{len(groups)} groups of near-identical images")


@command
def bursts(
    store: StoreName,
    seconds: Annotated[float, typer.Option(help="Most seconds from a photo to the next.", min=0.0)] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line a burst.")] = False,
) -> None:
    """Photos that a camera took seconds apart, the best of each marked by *; nothing is deleted."""
    from insclr.data.table import one_line
    from insclr.retrieval.bursts import find_bursts
    from insclr.store import open_store

    with closing(open_store(store)) as opened:
        found = find_bursts(opened, seconds)
    for burst in found:
        paths = [row.image.path for row in burst.rows]
        if as_json:
            typer.echo(json.dumps({"photos": paths, "best": burst.best.image.path}))
        else:
            marks = ("*" if row is burst.best else " " for row in burst.rows)
            typer.echo("\n".join(f"{mark} {one_line(path)}" for mark, path in zip(marks, paths, strict=True)))
    if not as_json:
        typer.echo(
            f"{len(found)} burst{'' if len(found) == 1 else 's'} of photos at most {seconds:g} seconds apart"
        )


@command
def cluster(
    store: StoreName,
    out: Annotated[Path, typer.Option(help="Folder for clusters.csv and the contact sheets.")],
    min_size: Annotated[int, typer.Option(help="Smallest group.")] = 2,
) -> None:
    """Group the images of the same instance: a CSV, and contact sheets as HTML pages."""
    from insclr.api import cluster as find_clusters

    groups = find_clusters(store, out, min_size=min_size)
    typer.echo(f"{len(groups)} things, {sum(map(len, groups))} images: {out / 'clusters.csv'}")


@command
def calibrate(
    store: StoreName,
    column: Annotated[str, typer.Option(help="A column that names the instance in each image.")] = "",
    answers: Annotated[
        Path | None, typer.Option(help="CSV with columns one, other (paths) and same (yes or no).")
    ] = None,
) -> None:
    """Calibrate the scores of a store: from a column or answered pairs, or anew without any labels."""
    from insclr.api import calibrate as calibrate_store

    curve = calibrate_store(store, column=column, answers=answers)
    source = f"{curve.answers} answered pairs" if curve.answers else "the images alone, without labels"
    typer.echo(f"scores calibrated from {source}: the display threshold is at cosine {curve.cutoff:.3f}")


def _refuse_token(token: str) -> None:
    if token:
        raise UserError(
            "A token on the command line can be read by every user of this machine: write it into a file and give "
            "that as --token-file, or set INSCLR_TOKEN, or let --make-token make one."
        )


@command
def serve(
    store: StoreName,
    options: ServeOptions,
    before: Annotated[str, typer.Option(help="A second store, of another model: before/after switch.")] = "",
    token: Annotated[str, typer.Option(hidden=True, callback=_refuse_token)] = "",  # noqa: ARG001
) -> None:
    """Search by photo in the browser."""
    from insclr.model.stored import with_weights
    from insclr.web.server import open_served
    from insclr.web.server import serve as serve_page

    own = with_weights(options.model, options.weights)
    stores = open_served([store, *([before] if before else [])], [own], options.device, options.engine)
    serve_page(stores, options, lambda: typer.echo(options.announcement))


@command
def mcp(
    store: StoreName,
    options: StoreModelOptions,
    write: Annotated[bool, typer.Option("--write", help="Offer tools that name photos, too.")] = False,
) -> None:
    """Let an assistant search a store: an MCP server on standard input and output."""
    from insclr.model.stored import with_weights
    from insclr.retrieval.query import describer_of
    from insclr.store import open_store
    from insclr.web.mcp_server import StoreTools, make_server

    with closing(open_store(store)) as opened:
        model = with_weights(options.model, options.weights)
        describer = describer_of(opened.info, model, workers=0, device=options.device, engine=options.engine)
        make_server(StoreTools(opened, describer), write=write).run()


@command
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the collection, the run and the store.")] = Path(
        "demo"
    ),
    recipe: Annotated[str, typer.Option(help="The recipe to train with.")] = "fast",
) -> None:
    """Run the whole job on a drawn collection: train, before and after, index, report."""
    from insclr.recipe import load_recipe

    load_recipe(recipe)  # refuses a wrong name before a collection is drawn
    from insclr.jobs.demo import run_demo

    done = run_demo(out, recipe, typer.echo)
    typer.echo(f"""
{done.table()}

report  {out / "run" / "report.html"}
search  insclr serve {out / "store"}

Now your own photos:
  insclr train PHOTOS --out RUN            train the network on your photos; no labels needed
  insclr index RUN PHOTOS --store STORE    make them searchable
  insclr serve STORE                       search by photo in your browser""")

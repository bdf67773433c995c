"""Commands on collections and stores: check, index, watch, search, duplicates, cluster, calibrate, serve, demo."""

import errno
import json
import os
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insclr import progress
from insclr.cli import tell_when_stopped
from insclr.cli.flags import Images, StoreName, command, list_given
from insclr.errors import UserError
from insclr.files import is_there
from insclr.options import IndexOptions, SearchOptions, StoreModelOptions
from insclr.web.settings import ServeOptions

if TYPE_CHECKING:
    from insclr.data.decode import Box
    from insclr.describe.describer import ModelDescriber


# Reasons for which an image is left out although it may be whole.
_NOT_ITS_FAULT = (
    "not enough memory",
    *map(os.strerror, (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)),
)


@command
def check(
    images: Images,
    workers: Annotated[int, typer.Option(help="Threads; -1 = one a core, at most eight.")] = -1,
) -> None:
    """Read every image: counts, sizes, formats, exact duplicates, unreadable files.

    Of a store's folder, every row, name and answer in it is compared with its checksum.
    """
    if is_there(images / "rows.sqlite"):
        typer.echo(_check_store(images))
        return
    from insclr.api import check as check_listed
    from insclr.data.images import list_images

    typer.echo("\n".join(check_listed(list_images(images), workers=workers).lines()))


def _check_store(folder: Path) -> str:
    """What a whole store holds; UserError that names what is damaged in another one."""
    from insclr.retrieval.local_database import LocalFeatureDatabase
    from insclr.store.local import LocalStore

    with closing(LocalStore(folder)) as store, closing(LocalFeatureDatabase(store.parts)) as local:
        found, count = store.damage(), f"{store.count()} images and {len(store.journal())} names and answers"
        local.read(sorted(local.hashes()))
        local.words()
    if found:
        raise UserError(
            f"{folder} has {len(found)} damaged parts: {'; '.join(found[:10])}. `insclr index` describes damaged "
            "rows again, and a search makes segments again. Damaged names and answers, or a damaged structure, come "
            "back only from a copy of the folder."
        )
    return f"{folder}: {count}, nothing damaged"


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


StoreToWrite = Annotated[
    str, typer.Option("--store", help="Folder of the store, or http://host:19530/NAME for Milvus.")
]


@command
def index(
    model: Annotated[
        str, typer.Argument(help="Run folder, model file, pretrained:NAME, or a store that has its model.")
    ],
    images: Images,
    options: IndexOptions,
    store: Annotated[
        str,
        typer.Option(
            help="Folder of the store, or http://host:19530/NAME for Milvus; needless where MODEL is a store."
        ),
    ] = "",
) -> None:
    """Index images for search: adds what is new, describes changed images again, skips the rest."""
    from insclr.store import is_store

    if not store and not is_store(model):
        raise UserError("Name the folder of the store: --store STORE.")
    store = store or model
    tell_when_stopped(lambda: f"{store} keeps the images indexed so far. Run the same command to continue.")
    from insclr.api import index as index_listed
    from insclr.data.table import one_line
    from insclr.shards import torchrun_shard

    options = options.change({"shard": options.shard or torchrun_shard()})
    report = index_listed(model, list_given(images), store, options)
    for path, reason in report.skipped:
        progress.say(one_line(f"unreadable: {path}: {reason}"))
    typer.echo(report.summary())
    if report.local:
        typer.echo(report.local)
    if report.skipped and not (report.added or report.changed or report.updated or report.unchanged):
        raise UserError(f"none of the {len(report.skipped)} images could be read; the reasons are above.")
    if failed := sum(any(one in reason for one in _NOT_ITS_FAULT) for _, reason in report.skipped):
        raise UserError(f"{failed} images could not be read just now, see above. Run the same command again.")


@command
def watch(
    folder: Annotated[Path, typer.Argument(help="Folder that images arrive in, with its subfolders.")],
    store: StoreToWrite,
    options: StoreModelOptions,
    every: Annotated[float, typer.Option(help="Polling interval in seconds.", min=0.1)] = 2.0,
) -> None:
    """Index images as they arrive in a folder, until Ctrl-C."""
    from insclr.data.images import ImageList
    from insclr.data.table import one_line
    from insclr.retrieval.index import index_images

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder that images arrive in.")
    folder = folder.absolute()
    describer, known = _open_watched(store, options)
    typer.echo(one_line(f"watching {folder}: {known} images in the store (Ctrl-C stops it)"))
    indexed: dict[str, tuple[int, int]] = {}
    added = changed = 0
    last_error = ""
    try:
        while True:
            try:
                files = _complete_files(folder, every)
                new = tuple(path for path, state in files.items() if indexed.get(path) != state)
                if new:
                    report = index_images(describer, ImageList(folder, new), store)
                    added, changed = added + report.added, changed + report.changed
                    for path, reason in report.skipped:
                        progress.say(one_line(f"unreadable: {path}: {reason}"))
                    if report.added or report.changed:
                        typer.echo(report.arrivals())
                indexed, last_error = files, ""
            except (
                UserError,
                OSError,
            ) as error:  # a store in use, an unmounted folder, a full disk: try again
                if str(error) != last_error:
                    progress.say(one_line(f"{error}. Trying again."))
                last_error = str(error)
            time.sleep(every)
    finally:
        typer.echo(f"while watching: {added} images added and {changed} changed; the store keeps them")


def _open_watched(store: str, options: StoreModelOptions) -> "tuple[ModelDescriber, int]":
    """The describer of the store's model, or of `--model` for a new store; and how many images the store has."""
    from insclr.model.stored import with_weights

    model = with_weights(options.model, options.weights)
    exists = "://" in store or Path(store).exists()
    if not exists and not model:
        raise UserError(f"there is no store at {store} yet: name with --model the model to make it with.")
    from insclr.describe.describer import ModelDescriber
    from insclr.engine.choose import EngineOptions
    from insclr.engine.opened import open_model
    from insclr.retrieval.query import describer_of
    from insclr.store import open_store

    if not exists:
        return ModelDescriber(model, open_model(model, EngineOptions(options.engine, options.device))), 0
    with closing(open_store(store)) as opened:
        info, known = opened.info, opened.count()
    return describer_of(info, model, device=options.device, engine=options.engine, streams=0), known


def _complete_files(folder: Path, every: float) -> dict[str, tuple[int, int]]:
    """Size and time of every image that was not written to within the last `every` seconds."""
    from insclr.data.formats import on_disk
    from insclr.data.images import list_images

    if not folder.is_dir():
        raise UserError(f"{folder} is gone: waiting for it to come back")
    try:
        images = list_images(folder)
    except UserError:
        return {}  # no image yet
    files = {}
    for i, path in enumerate(images.paths):
        with suppress(OSError):  # gone again, or not ours to read
            state = on_disk(images.file(i)).stat()
            if state.st_size and abs(time.time() - state.st_mtime) >= every:  # a camera's clock may be ahead
                files[path] = (state.st_size, state.st_mtime_ns)
    return files


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

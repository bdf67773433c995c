"""Commands that read a collection into a store: check, index, watch."""

import errno
import os
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insclr import progress
from insclr.cli import tell_when_stopped
from insclr.cli.flags import Images, command, list_given
from insclr.errors import UserError
from insclr.files import is_there
from insclr.options import IndexOptions, StoreModelOptions

if TYPE_CHECKING:
    from insclr.describe.describer import Describer

# Reasons for which an image is left out although it may be whole.
_NOT_ITS_FAULT = (
    "not enough memory",
    *map(os.strerror, (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)),
)


StoreToWrite = Annotated[
    str, typer.Option("--store", help="Folder of the store, or http://host:19530/NAME for Milvus.")
]


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
    model = _model_number(store)
    describer, known = _open_watched(store, options)
    typer.echo(one_line(f"watching {folder}: {known} images in the store (Ctrl-C stops it)"))
    indexed: dict[str, tuple[int, int]] = {}
    added = changed = 0
    last_error = ""
    try:
        while True:
            try:
                if (current := _model_number(store)) != model:  # learned, or gone back to, meanwhile
                    describer, _ = _open_watched(store, replace(options, model="", weights=""))
                    model, indexed = current, {}
                    progress.say("The store has another model now: images are indexed with it from here on.")
                files = complete_files(folder, every)
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


def _model_number(store: str) -> int:
    """The number of the store's current model; a server and a new store have one."""
    from insclr.store.store_models import read_models

    return 1 if "://" in store else read_models(Path(store)).current


def _open_watched(store: str, options: StoreModelOptions) -> "tuple[Describer, int]":
    """The describer of the store's model, or of `--model` for a new store; and how many images the store has."""
    from insclr.model.stored import with_weights

    model = with_weights(options.model, options.weights)
    exists = "://" in store or Path(store).exists()
    if not exists and not model:
        raise UserError(f"there is no store at {store} yet: name with --model the model to make it with.")
    from insclr.describe.describer import Describer
    from insclr.engine.choose import EngineOptions
    from insclr.engine.opened import open_model
    from insclr.retrieval.query import describer_of
    from insclr.store import open_store

    if not exists:
        return Describer(model, open_model(model, EngineOptions(options.engine, options.device))), 0
    with closing(open_store(store)) as opened:
        info, known = opened.info, opened.count()
    return describer_of(info, model, device=options.device, engine=options.engine, streams=0), known


def complete_files(folder: Path, every: float) -> dict[str, tuple[int, int]]:
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

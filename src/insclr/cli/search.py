"""Commands of the search engine: index, watch, search, duplicates, cluster, serve, and the demo that ends in one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insclr.cli import app, say_when_stopped
from insclr.cli.evaluation import (
    Device,
    EngineOption,
    LocalFeatures,
    LocalMatcher,
    ModelName,
    Rerank,
    ShardOption,
    Weights,
    require,
    with_weights,
)
from insclr.cli.photos import Images, listed

if TYPE_CHECKING:
    from insclr.data.decode import Box
    from insclr.retrieval.watch import Watcher

StoreName = Annotated[str, typer.Argument(help="A store's folder, or a Milvus address.", metavar="STORE")]
OwnModel = Annotated[str, typer.Option("--model", help="The store's model, where it has moved.")]


@app.command()
def index(
    model: ModelName,
    images: Images,
    store: Annotated[str, typer.Option(help="Folder of the store, or http://host:19530/NAME for Milvus.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop rows whose photo is no longer listed.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every photo: size and time may be old, the content new.")
    ] = False,
    regions: Annotated[
        bool,
        typer.Option("--regions", help="Keep vectors of parts too, to find small things: use --size 448."),
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Keep local features, for --rerank geometric (54 kB a photo).")
    ] = False,
    local_features: LocalFeatures = "",
    local_matcher: LocalMatcher = "",
    asmk: Annotated[
        bool, typer.Option("--asmk", help="Keep local descriptors, for --ranking asmk (2 kB a photo).")
    ] = False,
    size: Annotated[
        int, typer.Option(help="Side at which photos are described; 0 = what the model remembers.")
    ] = 0,
    weights: Weights = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
    shard: ShardOption = "",
) -> None:
    """Index photos for search: adds what is new, re-describes what changed, skips the rest."""
    from insclr.data.table import one_line
    from insclr.shards import shard_of

    own = shard_of(shard)
    say_when_stopped(lambda: f"{store} keeps the photos that were indexed: the same command goes on.")
    model = with_weights(model, weights)
    require(model, device, engine)
    found = listed(images)
    from insclr.api import index as index_photos

    report = index_photos(
        model,
        found,
        store,
        prune=prune,
        verify=verify,
        regions=regions,
        local=local,
        local_features=local_features,
        local_matcher=local_matcher,
        asmk=asmk,
        size=size,
        device=device,
        engine=engine,
        shard=own,
    )
    for path, reason in report.skipped:
        typer.echo(one_line(f"unreadable: {path}: {reason}"), err=True)
    typer.echo(report.summary())


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="Folder that photos arrive in, with its subfolders.")],
    store: Annotated[str, typer.Option(help="Folder of the store, or http://host:19530/NAME for Milvus.")],
    model: Annotated[str, typer.Option(help="For a new store, or where the store's model has moved.")] = "",
    every: Annotated[float, typer.Option(help="Seconds between two looks at the folder.", min=0.1)] = 2.0,
    weights: Weights = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Index photos as they arrive in a folder, until Ctrl-C."""
    from insclr.data.table import one_line
    from insclr.errors import UserError
    from insclr.retrieval.watch import watch as keep_watching

    watcher, known = _watcher(folder, store, with_weights(model, weights), device, engine)
    typer.echo(one_line(f"watching {folder}: {known} photos in the store (Ctrl-C stops it)"))
    try:
        for told in keep_watching(watcher, every):
            if isinstance(told, UserError):
                typer.echo(one_line(str(told)), err=True)
                continue
            for path, reason in told.skipped:
                typer.echo(one_line(f"unreadable: {path}: {reason}"), err=True)
            if told.added or told.changed:
                typer.echo(told.arrivals())
    finally:
        typer.echo(
            f"while watching: {watcher.added} photos added and {watcher.changed} changed; the store keeps them"
        )


def _watcher(folder: Path, store: str, model: str, device: str, engine: str) -> "tuple[Watcher, int]":
    """A watcher with the store's own model, and the number of photos in the store."""
    from insclr.errors import UserError

    there = "://" in store or Path(store).exists()
    if not there and not model:
        raise UserError(f"there is no store at {store} yet: say with --model which model it is made with.")
    from insclr.describe.describer import ModelDescriber
    from insclr.engine.choose import EngineOptions
    from insclr.engine.opened import open_model
    from insclr.retrieval.store_describer import describer_of
    from insclr.retrieval.watch import Watcher
    from insclr.store import open_store

    if there:
        opened = open_store(store)
        info = opened.info
        opened.close()
        watcher = Watcher(describer_of(info, model, device=device, engine=engine, streams=0), folder, store)
        return watcher, watcher.begin()
    describer = ModelDescriber(model, open_model(model, EngineOptions(engine, device)))
    return Watcher(describer, folder, store), 0


@app.command()
def search(
    store: StoreName,
    query: Annotated[Path, typer.Argument(help="A photo, or a folder or list of photos (JSON lines out).")],
    box: Annotated[str, typer.Option(help="Part of the photo: x1,y1,x2,y2 in pixels.")] = "",
    top: Annotated[int, typer.Option(help="Most results.")] = 20,
    min_score: Annotated[float, typer.Option(help="Least calibrated score, 0 to 1.")] = 0.0,
    where: Annotated[
        str, typer.Option(help='Filter on metadata, e.g. "year >= 1900 and room = attic".')
    ] = "",
    rerank: Rerank = "",
    ranking: Annotated[
        str,
        typer.Option(help="global (whole photos), regions (their best part) or asmk (local descriptors)."),
    ] = "global",
    regions: Annotated[bool, typer.Option("--regions", help="The same as --ranking regions.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    model: OwnModel = "",
    weights: Weights = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Find every photo of the thing in a photo."""
    from insclr.data.given import is_single
    from insclr.retrieval.search import Search, search_files

    ranking = "regions" if regions else ranking
    asked = Search(top=top, min_score=min_score, where=where, rerank=rerank, ranking=ranking)
    part = _parse_box(box) if box else None
    own = with_weights(model, weights)
    for found in search_files(store, query, asked, box=part, model=own, device=device, engine=engine):
        if as_json or not is_single(query):
            typer.echo(json.dumps(found.to_json()))
        else:
            typer.echo(found.table())


@app.command()
def duplicates(
    store: StoreName, as_json: Annotated[bool, typer.Option("--json", help="One JSON line a group.")] = False
) -> None:
    """Groups of near-identical photos."""
    from insclr.data.table import one_line
    from insclr.retrieval.duplicates import duplicates as find_duplicates
    from insclr.store import open_store

    opened = open_store(store)
    try:
        groups = [[row.image.path for row in group] for group in find_duplicates(opened)]
    finally:
        opened.close()
    for group in groups:
        typer.echo(json.dumps(group) if as_json else "\n  ".join(map(one_line, group)))
    if not as_json:
        typer.echo(f"{len(groups)} groups of near-identical photos")


@app.command()
def cluster(
    store: StoreName,
    out: Annotated[Path, typer.Option(help="Folder for clusters.csv and the contact sheets.")],
    min_size: Annotated[int, typer.Option(help="Smallest group.")] = 2,
) -> None:
    """Group the photos of the same thing: a CSV, and contact sheets as HTML pages."""
    from insclr.feedback.cluster import cluster as find_clusters
    from insclr.report.cluster_sheets import write_clusters
    from insclr.store import open_store

    opened = open_store(store)
    try:
        groups = find_clusters(opened, min_size)
        write_clusters(groups, opened, out)
    finally:
        opened.close()
    typer.echo(
        f"{len(groups)} things, {sum(len(group.rows) for group in groups)} photos: {out / 'clusters.csv'}"
    )


@app.command()
def serve(
    store: StoreName,
    before: Annotated[str, typer.Option(help="A second store, of another model: before/after switch.")] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine need it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that every request must carry.")
    ] = None,
    make_token: Annotated[
        bool, typer.Option("--make-token", help="Make a token and print it once, in the address.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines without a token.")
    ] = False,
    root_path: Annotated[str, typer.Option(help="Where a proxy shows the page, such as /photos.")] = "",
    name: Annotated[
        list[str] | None, typer.Option(help="Host name that the page is asked for by, such as a proxy's.")
    ] = None,
    proxy: Annotated[
        str, typer.Option(help="Address of a proxy whose X-Forwarded headers are believed.")
    ] = "",
    originals: Annotated[
        bool, typer.Option(help="Let people open and download the files themselves, camera data and all.")
    ] = True,
    token: Annotated[str, typer.Option(hidden=True)] = "",
    model: OwnModel = "",
    weights: Weights = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Search by photo in the browser."""
    from insclr.errors import UserError
    from insclr.web.server import open_served
    from insclr.web.server import serve as serve_page
    from insclr.web.settings import ServeSettings, find_token

    if token:
        raise UserError(
            "A token on the command line can be read by everybody on this machine: write it into a file and give "
            "that as --token-file, or set INSCLR_TOKEN, or let --make-token make one."
        )
    settings = ServeSettings(
        host=host,
        port=port,
        token=find_token(token_file, make_token),
        insecure=insecure,
        root_path=root_path,
        names=tuple(one.lower() for one in name or ()),
        originals=originals,
        proxy=proxy,
    )
    own = with_weights(model, weights)
    stores = open_served([store, *([before] if before else [])], [own], device, engine)
    # Only a token that nobody has seen yet is shown.
    query = f"?token={settings.token}" if make_token else "?token=..." if settings.token else ""
    typer.echo(f"open {settings.address}{query} (Ctrl-C stops it)")
    serve_page(stores, settings)


def _parse_box(text: str) -> "Box":
    from insclr.errors import UserError

    try:
        x1, y1, x2, y2 = (float(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"--box {text} is not four numbers x1,y1,x2,y2 in pixels.") from None
    return x1, y1, x2, y2


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the collection, the run and the store.")] = Path(
        "demo"
    ),
    recipe: Annotated[str, typer.Option(help="The recipe to train with.")] = "fast",
) -> None:
    """See the whole job done on a drawn collection: train, before and after, index, report."""
    from insclr.recipe import load_recipe

    load_recipe(recipe)  # refuses a wrong name before a collection is drawn
    from insclr.jobs.demo import run_demo

    done = run_demo(out, recipe, typer.echo)
    typer.echo(f"""
{done.table()}

report  {out / "run" / "report.html"}
search  insclr serve {out / "store"}

Now your own photos:
  insclr train PHOTOS --out RUN            teach the network your things; no labels needed
  insclr index RUN PHOTOS --store STORE    make them searchable
  insclr serve STORE                       search by photo in your browser""")

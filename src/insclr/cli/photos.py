"""Commands about collections: check, demo-data."""

from pathlib import Path
from typing import Annotated

import typer

from insclr.cli import app

Images = Annotated[
    Path,
    typer.Argument(
        help="Folder of photos, .txt list, or .csv/.parquet with a path column.", metavar="IMAGES"
    ),
]


@app.command()
def check(
    images: Images,
    workers: Annotated[int, typer.Option(help="Processes; -1 = one a core.")] = -1,
) -> None:
    """Look at every photo: counts, sizes, formats, exact duplicates, unreadable files."""
    from insclr.data.check import check_images
    from insclr.data.images import list_images
    from insclr.data.workers import default_workers

    report = check_images(list_images(images), default_workers() if workers < 0 else workers)
    typer.echo("\n".join(report.lines()))


@app.command("demo-data")
def demo_data(
    out: Annotated[Path, typer.Argument(help="Folder to draw the collection into.")],
    things: Annotated[int, typer.Option(help="How many different things.")] = 60,
    views: Annotated[int, typer.Option(help="Pictures of each.")] = 25,
    size: Annotated[int, typer.Option(help="Side of a picture, in pixels.")] = 224,
    seed: Annotated[int, typer.Option(help="One seed, one collection.")] = 0,
) -> None:
    """Draw a collection of things to try InsCLR on: no download, always the same."""
    from insclr_demo import draw_collection

    labels = draw_collection(out, things=things, views=views, size=size, seed=seed)
    typer.echo(f"{things * views} pictures of {things} things: {labels}")

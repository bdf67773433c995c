"""Commands about collections: check, demo-data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insclr.cli import app

if TYPE_CHECKING:
    from insclr.data.images import ImageList

Images = Annotated[
    Path,
    typer.Argument(
        help="Folder of photos, .txt list, or .csv/.parquet with a path column.", metavar="IMAGES"
    ),
]


def listed(images: Path) -> "ImageList":
    """The images that a command is given; what lies beside them and is not read is told on the error output."""
    from insclr.data.formats import not_read_lines
    from insclr.data.images import list_images

    found = list_images(images)
    for line in not_read_lines(found.not_read):
        typer.echo(line, err=True)
    return found


@app.command()
def check(
    images: Images,
    workers: Annotated[int, typer.Option(help="Threads; -1 = one a core, at most eight.")] = -1,
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
    views: Annotated[int, typer.Option(help="Pictures of each; 0 = 25, with --clutter 10.")] = 0,
    size: Annotated[int, typer.Option(help="Side of a picture, in pixels.")] = 224,
    seed: Annotated[int, typer.Option(help="One seed, one collection.")] = 0,
    clutter: Annotated[
        bool,
        typer.Option(
            "--clutter", help="Busy pictures of twice the side, the thing small in them, with boxes."
        ),
    ] = False,
) -> None:
    """Draw a collection of things to try InsCLR on: no download, always the same."""
    from insclr_demo import QUERIES, draw_collection

    views = views or (10 if clutter else 25)
    labels = draw_collection(out, things=things, views=views, size=size, seed=seed, clutter=clutter)
    queries = f" and {things * QUERIES} to search for" if clutter else ""
    typer.echo(f"{things * views} pictures of {things} things{queries}: {labels}")

"""Commands on collections of images: check, demo-data."""

from pathlib import Path
from typing import Annotated

import typer

from insclr.cli.flags import Images, command


@command
def check(
    images: Images,
    workers: Annotated[int, typer.Option(help="Threads; -1 = one a core, at most eight.")] = -1,
) -> None:
    """Read every image: counts, sizes, formats, exact duplicates, unreadable files."""
    from insclr.api import check as check_listed
    from insclr.data.images import list_images

    typer.echo("\n".join(check_listed(list_images(images), workers=workers).lines()))


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

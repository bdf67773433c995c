"""A small collection to serve: things of drawn pictures, described by their colours."""

from pathlib import Path

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.retrieval.index import index_images
from insclr.store import open_store
from insclr.web.served import ServedStore


def make_store(folder: Path, title: str = "Search", things: int = 6, views: int = 8) -> ServedStore:
    """Draw, index and open a collection below `folder`."""
    paths = draw_things(folder / "images", things, views)
    lines = [f"{path},{path.split('/')[0]},{2000 + i}" for i, path in enumerate(paths)]
    table = folder / "images" / "list.csv"
    table.write_text("path,thing,year\n" + "\n".join(lines) + "\n")
    describer = HistogramDescriber()
    index_images(describer, list_images(table), folder / "store")
    return ServedStore(title, open_store(folder / "store"), describer)

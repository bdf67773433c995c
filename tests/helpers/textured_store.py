"""A store of four photos for geometric verification: a thing, a photo that shows it, and two that do not."""

from pathlib import Path

from PIL import Image

from helpers.blots import placed, textured
from helpers.histogram_describer import HistogramDescriber
from insclr.data.images import list_images
from insclr.retrieval.index import index_images
from insclr.store import open_store
from insclr.web.served import ServedStore


def make_textured_store(tmp_path: Path) -> ServedStore:
    folder = tmp_path / "images"
    folder.mkdir()
    placed(textured(1), 0, 0.75, (200, 100)).save(folder / "with.png")
    textured(50, 480).save(folder / "without.png")
    Image.new("RGB", (300, 300), "grey").save(folder / "grey.png")
    textured(1).save(folder / "thing.png")
    describer = HistogramDescriber()
    index_images(describer, list_images(folder), tmp_path / "store", local="on", regions=True)
    return ServedStore("Search", open_store(tmp_path / "store"), describer)

"""Camera data in a store: filled in when photos are indexed, kept, and given to stores that were made without."""

import sqlite3
from contextlib import closing
from pathlib import Path

from PIL import Image

from helpers.histogram_describer import HistogramDescriber, draw
from insclr.data.images import list_images
from insclr.retrieval.index import index_images
from insclr.store import open_store


def shoot(file: Path, thing: int, view: int, taken: str) -> None:
    """A drawn photo with a time."""
    draw(file, thing, view)
    exif = Image.Exif()
    exif[0x0110] = "Box"
    exif.get_ifd(0x8769)[0x9003] = taken
    with Image.open(file) as image:
        image.load()
        image.save(file, exif=exif)


def columns_of(store: Path) -> dict[str, dict[str, str]]:
    return {path: dict(row.image.columns) for path, row in open_store(store).rows_by_path().items()}


def test_camera_data_are_columns_that_filters_use(tmp_path: Path) -> None:
    for view in range(3):
        shoot(tmp_path / "photos" / f"{view}.png", 1, view, f"202{view}:03:04 05:06:07")
    draw(tmp_path / "photos" / "plain.png", 2, 0)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    found = columns_of(tmp_path / "store")
    assert found["plain.png"] == {}
    assert found["1.png"] == {
        "taken": "2021-03-04 05:06:07",
        "camera": "Box",
        "orientation": "landscape",
    } or (found["1.png"]["taken"] == "2021-03-04 05:06:07")
    assert set(open_store(tmp_path / "store").columns()) == {"taken", "camera", "orientation"}


def test_columns_of_a_table_come_besides_and_first(tmp_path: Path) -> None:
    shoot(tmp_path / "a.png", 1, 0, "2020:03:04 05:06:07")
    shoot(tmp_path / "b.png", 1, 1, "2021:03:04 05:06:07")
    (tmp_path / "list.csv").write_text("path,room,camera\na.png,hall,mine\nb.png,attic,\n")
    for _ in range(2):
        index_images(HistogramDescriber(), list_images(tmp_path / "list.csv"), tmp_path / "store")
        found = columns_of(tmp_path / "store")
        assert (found["a.png"]["camera"], found["a.png"]["room"]) == ("mine", "hall")
        assert found["a.png"]["taken"] == "2020-03-04 05:06:07"
        assert found["b.png"]["camera"] == "Box"


def test_a_store_that_was_made_without_gets_them_and_describes_nothing_again(tmp_path: Path) -> None:
    shoot(tmp_path / "photos" / "a.png", 1, 0, "2020:03:04 05:06:07")
    shoot(tmp_path / "photos" / "b.png", 2, 0, "2020:03:04 05:06:08")
    describer = HistogramDescriber()
    index_images(describer, list_images(tmp_path / "photos"), tmp_path / "store")
    store = open_store(tmp_path / "store")
    rows = [row.image for row in store.rows_by_path().values()]
    store.update([type(one)(one.path, one.hash, one.size, one.mtime, {}) for one in rows])
    store.close()
    with closing(sqlite3.connect(tmp_path / "store" / "rows.sqlite")) as database, database:
        database.execute("DELETE FROM notes WHERE name = 'camera data'")
    report = index_images(describer, list_images(tmp_path / "photos"), tmp_path / "store")
    assert (report.updated, len(describer.described)) == (2, 2)
    assert columns_of(tmp_path / "store")["b.png"]["taken"] == "2020-03-04 05:06:08"
    assert index_images(describer, list_images(tmp_path / "photos"), tmp_path / "store").unchanged == 2

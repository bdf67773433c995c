"""Boxes as rows: read from three formats, described as cut out by hand, never merged within a photo."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.histogram_describer import HistogramDescriber
from insclr.data.boxes import list_boxes
from insclr.data.formats import on_disk, part_name, split_part
from insclr.data.images import ImageList, list_images
from insclr.errors import UserError
from insclr.options import SearchOptions
from insclr.retrieval.duplicates import duplicates
from insclr.retrieval.index import index_images
from insclr.retrieval.query import image_query
from insclr.retrieval.search import search
from insclr.store import open_store

LEFT, RIGHT = [0, 0, 100, 80], [100, 0, 100, 80]  # x, y, width, height in a photo of 200 x 80


@pytest.fixture
def photos(tmp_path: Path) -> ImageList:
    """a.png: red and blue; b.png: twice the same green; c.png: no box."""
    (tmp_path / "photos").mkdir()
    for name, colours in (("a", ("red", "blue")), ("b", ("green", "green")), ("c", ("black", "white"))):
        image = Image.new("RGB", (200, 80), colours[0])
        image.paste(Image.new("RGB", (100, 80), colours[1]), (100, 0))
        image.save(tmp_path / "photos" / f"{name}.png")
    return list_images(tmp_path / "photos")


def coco(folder: Path) -> Path:
    boxes = [(photo, box) for photo in (1, 2) for box in (LEFT, RIGHT)]
    content = {
        "images": [
            {"id": 1, "file_name": "a.png", "width": 200, "height": 80},
            {"id": 2, "file_name": "b.png"},
        ],
        "categories": [{"id": 7, "name": "bird"}],
        "annotations": [
            {"id": i, "image_id": photo, "category_id": 7, "bbox": box}
            for i, (photo, box) in enumerate(boxes)
        ],
    }
    (folder / "coco.json").write_text(json.dumps(content))
    return folder / "coco.json"


def megadetector(folder: Path) -> Path:
    detections = [
        {"category": "1", "conf": 0.9, "bbox": [0, 0, 0.5, 1]},
        {"category": "1", "conf": 0.5, "bbox": [0.5, 0, 0.5, 1]},
        {"category": "1", "conf": 0.05, "bbox": [0, 0, 0.1, 0.1]},
    ]
    content = {
        "detection_categories": {"1": "animal"},
        "images": [{"file": f"photos/{name}.png", "detections": detections} for name in "ab"]
        + [{"file": "c.png", "failure": "unreadable", "detections": None}],
    }
    (folder / "found.json").write_text(json.dumps(content))
    return folder / "found.json"


def table(folder: Path) -> Path:
    lines = [f"{name}.png,{x},0,{x + 100},80,s{x}" for name in "ab" for x in (0, 100)]
    (folder / "boxes.csv").write_text("\n".join(["path,x1,y1,x2,y2,shelf", *lines]) + "\n")
    return folder / "boxes.csv"


@pytest.mark.parametrize("write", [coco, megadetector, table])
def test_three_formats_give_the_same_parts(tmp_path: Path, photos: ImageList, write: object) -> None:
    found = list_boxes(write(tmp_path), photos, 0.2)  # type: ignore[operator]
    assert found.paths == tuple(f"{name}.png#xywh=percent:{x},0,50,100" for name in "ab" for x in (0, 50))
    assert found.columns["photo"] == ("a.png", "a.png", "b.png", "b.png")
    assert on_disk(found.file(1)) == photos.file(0)
    extra = {coco: ("label", "bird"), megadetector: ("confidence", "0.9"), table: ("shelf", "s0")}[write]  # type: ignore[index]
    assert found.columns[extra[0]][0] == extra[1]


def test_each_box_is_a_row_described_like_the_part_cut_out(tmp_path: Path, photos: ImageList) -> None:
    describer = HistogramDescriber()
    boxes = list_boxes(coco(tmp_path), photos)
    assert index_images(describer, boxes, tmp_path / "store").added == 4
    assert index_images(describer, boxes, tmp_path / "store").unchanged == 4
    store = open_store(tmp_path / "store")
    rows = store.rows_by_path()
    wanted = describer.images([Image.new("RGB", (100, 80), colour) for colour in ("red", "blue", "green")])
    found = store.descriptors([rows[path].id for path in boxes.paths[:3]])
    assert np.allclose(found, wanted, atol=1e-3)


def test_two_boxes_of_one_photo_are_never_merged(tmp_path: Path, photos: ImageList) -> None:
    describer = HistogramDescriber()
    index_images(describer, list_boxes(coco(tmp_path), photos), tmp_path / "store")
    store = open_store(tmp_path / "store")
    query = image_query(Image.new("RGB", (50, 50), "green"))
    matches = search(store, describer, [query], SearchOptions(top=4))
    assert [(one.path[0], len(one.copies)) for one in matches[:2]] == [("b", 0), ("b", 0)]
    assert duplicates(store) == []


@pytest.mark.parametrize("box", [(0, 0, 1, 1), (0.123456, 0.2, 0.5, 0.987654), (0, 0.5, 1e-4, 1)])
def test_a_part_s_name_holds_its_box(box: tuple[float, float, float, float]) -> None:
    photo, found = split_part(part_name("x/a#1.jpg", box))
    assert str(photo) == "x/a#1.jpg"
    assert found == pytest.approx(box, abs=1e-5)
    assert split_part("x/a.jpg#xywh=percent:1,2,3")[1] is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "cannot be read as JSON"),
        ("a.json", "[]", "neither COCO nor MegaDetector"),
        ("a.json", '{"annotations": [{"image_id": 4}], "images": []}', "neither COCO nor MegaDetector"),
        ("a.json", '{"images": []}', "holds no usable box"),
        ("a.csv", "path,x1,y1,x2,y2\na.png,1,2,x,4\n", "line 2: x1, y1, x2, y2 must be numbers"),
        ("a.csv", "path,x1\na.png,1\n", 'no column "y1"'),
        ("a.csv", "path,x1,y1,x2,y2\nz.png,1,2,3,4\na.png,500,500,600,600\n", "holds no usable box"),
    ],
)
def test_a_file_that_makes_no_sense_is_explained(
    tmp_path: Path, photos: ImageList, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        list_boxes(tmp_path / name, photos)

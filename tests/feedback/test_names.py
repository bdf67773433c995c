"""Names go out as files that others read, and come in from folders, tables and other stores."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.feedback import names
from insclr.feedback.entries import name_thing
from insclr.feedback.feedback import read_feedback
from insclr.feedback.names import build_gallery
from insclr.retrieval.index import index_images
from insclr.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    draw_things(tmp_path / "photos", 4, 5)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    return open_store(tmp_path / "store")


def test_folder_names_come_in_and_a_table_goes_out(store: Store, tmp_path: Path) -> None:
    assert names.import_names(store, "folders") == 20
    assert names.export_csv(store, tmp_path / "names.csv") == 20
    rows = list(csv.DictReader((tmp_path / "names.csv").open(newline="")))
    assert {(row["path"], row["name"]) for row in rows} == {
        (f"{thing}/{view}.png", str(thing)) for thing in range(4) for view in range(5)
    }
    assert {row["by"] for row in rows} == {"person"}


def test_a_name_that_a_spreadsheet_would_run_is_quoted_and_comes_back_as_it_was(
    store: Store, tmp_path: Path
) -> None:
    image = store.rows_by_path()["0/0.png"].image.hash
    store.append(name_thing("thing-00", '=HYPERLINK("http://evil")', [image]))
    names.export_csv(store, tmp_path / "names.csv")
    assert "'=HYPERLINK" in (tmp_path / "names.csv").read_text()
    draw_things(tmp_path / "photos", 4, 5)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "other")
    other = open_store(tmp_path / "other")
    names.import_names(other, str(tmp_path / "names.csv"))
    assert read_feedback(other).name_of(image) == '=HYPERLINK("http://evil")'


def test_links_and_sidecars_lead_to_the_photos(store: Store, tmp_path: Path) -> None:
    image = store.rows_by_path()["1/2.png"].image.hash
    store.append(name_thing("thing-00", "a/b <&> ..", [image]))
    assert names.export_links(store, tmp_path / "links") >= 1
    assert names.export_links(store, tmp_path / "links") >= 1  # again: nothing is made twice
    folder = tmp_path / "links" / "a_b ___"
    assert [one.name for one in (tmp_path / "links").iterdir()] == [names.folder_name("a/b <&> ..")]
    folder = tmp_path / "links" / names.folder_name("a/b <&> ..")
    targets = {one.resolve() for one in folder.iterdir()}
    assert (tmp_path / "photos" / "1" / "2.png").resolve() in targets
    names.export_xmp(store, tmp_path / "xmp")
    tree = ElementTree.parse(tmp_path / "xmp" / "1" / "2.png.xmp")
    (name,) = tree.iter("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li")
    assert name.text == "a/b <&> .."


def test_another_store_brings_all_that_was_said_and_bringing_it_twice_changes_nothing(
    store: Store, tmp_path: Path
) -> None:
    names.import_names(store, "folders")
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "other")
    other = open_store(tmp_path / "other")
    assert names.import_names(other, str(tmp_path / "store")) == 20
    assert names.import_names(other, str(tmp_path / "store")) == 20
    assert read_feedback(other).thing_of == read_feedback(store).thing_of
    assert len(other.journal()) == len(store.journal())


def test_a_wrong_table_is_explained(store: Store, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\n0/0.png,x\n")
    with pytest.raises(UserError, match="columns path, name"):
        names.import_names(store, str(table))
    table.write_text("path,name\n0/0.png,x\nnowhere.png,y\n")
    with pytest.raises(UserError, match=r"line 3: there is no photo nowhere\.png"):
        names.import_names(store, str(table))
    assert store.journal() == []


def test_a_new_photo_joins_a_named_thing_or_is_new(store: Store, tmp_path: Path) -> None:
    names.import_names(store, "folders")
    from helpers.histogram_describer import draw

    draw(tmp_path / "photos" / "later" / "seen.png", 2, 77)
    draw(tmp_path / "photos" / "later" / "unseen.png", 901, 0)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    found = build_gallery(store)
    named = {row.image.path: thing.name for thing in found.things for row in thing.rows}
    assert named["later/seen.png"] == "2"
    assert "later/unseen.png" in {row.image.path for row in found.alone}

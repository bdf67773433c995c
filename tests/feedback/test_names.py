"""Names go out as files that others read, and come in from folders, tables and other stores."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.feedback import name_files as names
from insclr.feedback.entries import add_images, name_thing
from insclr.feedback.feedback import read_feedback
from insclr.feedback.names import build_gallery, named_rows
from insclr.feedback.sidecars import read_sidecar
from insclr.retrieval.index import index_images
from insclr.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    draw_things(tmp_path / "photos", 4, 5)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    return open_store(tmp_path / "store")


def test_folder_names_come_in_and_a_table_goes_out(store: Store, tmp_path: Path) -> None:
    assert names.import_names(store, "folders").named == 20
    assert names.export_csv(store, tmp_path / "names.csv") == 20
    rows = list(csv.DictReader((tmp_path / "names.csv").open(newline="", encoding="utf-8-sig")))
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
    (keyword, *tags) = (one.text for one in tree.iter("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"))
    assert keyword == "a/b <&> .."
    assert set(tags) == {f"Things/{keyword}", f"Things|{keyword}"}


def test_another_store_brings_all_that_was_said_and_bringing_it_twice_changes_nothing(
    store: Store, tmp_path: Path
) -> None:
    names.import_names(store, "folders")
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "other")
    other = open_store(tmp_path / "other")
    assert names.import_names(other, str(tmp_path / "store")).named == 20
    assert names.import_names(other, str(tmp_path / "store")).named == 20
    assert read_feedback(other).thing_of == read_feedback(store).thing_of
    assert len(other.journal()) == len(store.journal())


def test_a_wrong_table_is_explained(store: Store, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\n0/0.png,x\n")
    with pytest.raises(UserError, match="columns path, name"):
        names.import_names(store, str(table))
    table.write_text("path,name\nnowhere.png,y\n")
    with pytest.raises(UserError, match=r"1 not in the store: nowhere\.png"):
        names.import_names(store, str(table))
    assert store.journal() == []


def test_a_new_photo_joins_a_named_thing_or_is_new(tmp_path: Path) -> None:
    draw_things(tmp_path / "photos", 4, 12)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    store = open_store(tmp_path / "store")
    names.import_names(store, "folders")
    from helpers.histogram_describer import draw

    draw(tmp_path / "photos" / "later" / "seen.png", 2, 77)
    draw(tmp_path / "photos" / "later" / "unseen.png", 901, 0)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    found = build_gallery(store)
    named = {row.image.path: thing.name for thing in found.things for row in thing.rows}
    assert named["later/seen.png"] == "2"
    assert "later/unseen.png" in {row.image.path for row in found.alone}


def test_unknown_photos_are_reported_and_the_rest_is_taken(store: Store, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("\ufeffpath;name\n0/0.png;x\nnowhere.png;y\n")
    report = names.import_names(store, str(table))
    assert (report.named, report.unknown) == (1, ["nowhere.png"])
    assert report.summary() == "1 images named\n1 not in the store: nowhere.png"


def test_an_edited_sheet_is_not_written_over(store: Store, tmp_path: Path) -> None:
    table = tmp_path / "names.csv"
    table.write_text("path,name\n0/0.png,mine\n")
    with pytest.raises(UserError, match=r"import it first.*--replace"):
        names.export_csv(store, table)
    assert "mine" in table.read_text()
    names.export_csv(store, table, replace=True)
    assert table.read_bytes().startswith(b"\xef\xbb\xbfpath")  # spreadsheets know it as UTF-8


def test_a_spreadsheet_of_a_locale_with_decimal_commas_gets_semicolons(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.import_names(store, "folders")
    monkeypatch.setattr("locale.localeconv", lambda: {"decimal_point": ","})
    names.export_csv(store, tmp_path / "names.csv")
    assert (
        (tmp_path / "names.csv").read_text(encoding="utf-8-sig").startswith("path;name;by\n0/0.png;0;person")
    )
    report = names.import_names(store, str(tmp_path / "names.csv"))
    assert (report.named, report.unchanged) == (0, 20)


def test_who_said_what_stays_true_when_an_edited_sheet_comes_back(store: Store, tmp_path: Path) -> None:
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    store.append(name_thing("thing-00", "mug", [image[f"0/{view}.png"] for view in range(4)], grouped=True))
    store.append(add_images("thing-00", [image["0/0.png"]]))
    names.export_csv(store, tmp_path / "names.csv")
    text = (tmp_path / "names.csv").read_text(encoding="utf-8-sig")
    assert sorted(line.split(",")[2] for line in text.split()[1:]) == ["person", "score", "score", "score"]
    (tmp_path / "names.csv").write_text(text.replace("0/2.png,mug,score", "0/2.png,vase,score"))
    report = names.import_names(store, str(tmp_path / "names.csv"))
    assert (report.named, report.unchanged) == (1, 3)
    said = {row.image.path: (name, by) for name, row, by in named_rows(store)}
    assert said == {
        "0/0.png": ("mug", True),
        "0/1.png": ("mug", False),
        "0/2.png": ("vase", True),
        "0/3.png": ("mug", False),
    }


# As digiKam writes it: regions as elements, tags of the folder "People", keywords of all kinds.
_DIGIKAM = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:digiKam="http://www.digikam.org/ns/1.0/"
    xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
    xmlns:mwg-rs="http://www.metadataworkinggroup.com/schemas/regions/"
    xmlns:stDim="http://ns.adobe.com/xap/1.0/sType/Dimensions#" xmlns:stArea="http://ns.adobe.com/xmp/sType/Area#"
    digiKam:PickLabel="0">
   <digiKam:TagsList><rdf:Seq><rdf:li>Places/Oslo</rdf:li><rdf:li>People/{name}</rdf:li></rdf:Seq></digiKam:TagsList>
   <dc:subject><rdf:Bag><rdf:li>Oslo</rdf:li><rdf:li>{name}</rdf:li></rdf:Bag></dc:subject>
   <mwg-rs:Regions rdf:parseType="Resource">
    <mwg-rs:AppliedToDimensions stDim:w="400" stDim:h="300" stDim:unit="pixel"/>
    <mwg-rs:RegionList><rdf:Bag>{regions}</rdf:Bag></mwg-rs:RegionList>
   </mwg-rs:Regions>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""
_REGION = """<rdf:li><rdf:Description mwg-rs:Name="{name}" mwg-rs:Type="Face">
 <mwg-rs:Area stArea:x="0.5" stArea:y="0.25" stArea:w="0.2" stArea:h="0.5" stArea:unit="normalized"/>
</rdf:Description></rdf:li>"""


def test_sidecars_of_digikam_come_in_with_their_regions_and_go_out_again(
    store: Store, tmp_path: Path
) -> None:
    regions = _REGION.format(name="Old mug")
    for path, text in {
        "0/0.png.xmp": _DIGIKAM.format(name="Old mug", regions=regions),
        "0/1.xmp": _DIGIKAM.format(name="Old mug", regions=""),
        "0/2.png.xmp": _DIGIKAM.format(name="Old mug", regions=regions + _REGION.format(name="Vase")),
        "0/9.png.xmp": _DIGIKAM.format(name="Old mug", regions=regions),
        "1/0.png.xmp": "no XML",
    }.items():
        file = tmp_path / "sidecars" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    report = names.import_names(store, str(tmp_path / "sidecars"))
    assert (report.named, report.unknown, report.unclear) == (2, ["0/9.png"], ["0/2.png", "1/0.png"])
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    feedback = read_feedback(store)
    assert feedback.boxes == {image["0/0.png"]: (0.4, 0.0, 0.6, 0.5)}
    names.export_xmp(store, tmp_path / "out")
    assert read_sidecar((tmp_path / "out" / "0" / "0.png.xmp").read_bytes()) == (
        "Old mug",
        (0.4, 0.0, 0.6, 0.5),
    )
    assert read_sidecar((tmp_path / "out" / "0" / "1.png.xmp").read_bytes()) == ("Old mug", None)
    again = names.import_names(store, str(tmp_path / "out"))
    assert (again.named, again.unchanged) == (0, 2)
    with pytest.raises(UserError, match="--replace"):
        names.export_xmp(store, tmp_path / "out")

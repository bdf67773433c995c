"""What the page's viewer and filters ask the API for: the files themselves, the columns, the folder."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers.clients import client_of
from insclr.web.answers import media_type, original_response, picture_answer
from insclr.web.served import Refused, ServedStore


def address_of(collection: ServedStore, path: str) -> str:
    return f"/api/stores/0/rows/{collection.store.rows_by_path()[path].id}/original"


def test_an_original_is_the_file_byte_by_byte(collection: ServedStore) -> None:
    file = collection.store.info.root / "1" / "1.png"
    with client_of(collection) as client:
        answer = client.get(address_of(collection, "1/1.png"))
        assert answer.content == file.read_bytes()
        assert answer.headers["content-type"] == "image/png"
        assert answer.headers["content-disposition"] == "inline; filename*=UTF-8''1.png"
        assert answer.headers["x-content-type-options"] == "nosniff"
        saved = client.get(address_of(collection, "1/1.png"), params={"download": True})
        assert saved.content == file.read_bytes()
        assert saved.headers["content-disposition"] == "attachment; filename*=UTF-8''1.png"


def test_what_took_the_place_of_a_photo_is_not_given_away(collection: ServedStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password of the museum")
    file = collection.store.info.root / "1" / "1.png"
    with client_of(collection) as client:
        file.unlink()
        gone = client.get(address_of(collection, "1/1.png"))
        assert gone.status_code == 404
        file.symlink_to(secret)
        other = client.get(address_of(collection, "1/1.png"))
        assert other.status_code == 404
        assert b"museum" not in other.content
        file.unlink()
        Image.new("RGB", (8, 8), "red").save(tmp_path / "private.png")
        file.symlink_to(tmp_path / "private.png")  # a photo, but not the indexed one
        private = client.get(address_of(collection, "1/1.png"))
        assert private.status_code == 404
        assert "index" in private.json()["detail"]
        file.unlink()
        file.mkdir()
        assert client.get(address_of(collection, "1/1.png")).status_code == 404


def test_originals_can_be_kept_back(collection: ServedStore) -> None:
    with client_of(collection, originals=False) as client:
        answer = client.get(address_of(collection, "1/1.png"))
        assert answer.status_code == 403
        assert not client.get("/api/about").json()["originals"]


@pytest.mark.parametrize(
    ("format_", "kind"),
    [
        ("JPEG", "image/jpeg"),
        ("PNG", "image/png"),
        ("GIF", "image/gif"),
        ("BMP", "image/bmp"),
        ("WEBP", "image/webp"),
        ("AVIF", "image/avif"),
        ("TIFF", "application/octet-stream"),
        ("PPM", "application/octet-stream"),
    ],
)
def test_the_kind_of_a_photo_is_read_off_its_first_bytes(format_: str, kind: str) -> None:
    written = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(written, format_)
    assert media_type(written.getvalue()[:16]) == kind


@pytest.mark.parametrize(
    "head",
    [
        b"II+\0\x08\0\0\0",  # BigTIFF
        b"MM\0+\0\x08\0\0",
        b"II\x1a\0\0\0HEAPCCDR\x02\0",  # .crw
        b"FOVb\0\0\x02\0",  # .x3f
        b"\0MRM\0\0\x60\0",  # .mrw
        b"IIRO\x08\0\0\0",  # .orf
        b"IIRS\x08\0\0\0",
        b"MMOR\0\0\0\x08",
        b"IIU\0\x18\0\0\0",  # .rw2, .rwl
        b"FUJIFILMCCD-RAW ",  # .raf
        b"\0\0\0\x18ftypcrx \0\0\0\1",  # .cr3
    ],
)
def test_raw_photos_that_are_indexed_can_be_downloaded(head: bytes) -> None:
    assert media_type(head[:16]) == "application/octet-stream"


def test_a_frame_of_a_video_offers_no_original(collection: ServedStore) -> None:
    row = collection.row(collection.store.rows_by_path()["1/1.png"].id)
    assert picture_answer(0, row).original == f"/api/stores/0/rows/{row.id}/original"
    frame = replace(row, image=replace(row.image, path="clip.mp4#t=2.0"))
    assert picture_answer(0, frame).original == ""
    with pytest.raises(Refused, match="no file of its own"):
        original_response(collection.file(frame), frame.image.hash, download=False)


@pytest.mark.parametrize(
    "head",
    [b"", b"<svg onload=x>", b"%PDF-1.7", b"MZ\x90\0", b"BMW keys are", b"P2P notes", b"RIFF\0\0\0\0WAVE"],
)
def test_other_files_have_no_kind(head: bytes) -> None:
    assert media_type(head) == ""


def test_the_folder_is_shown_only_on_the_same_machine(collection: ServedStore) -> None:
    def folder(**settings: Any) -> str:
        with client_of(collection, **settings) as client:
            return client.get("/api/about").json()["stores"][0]["folder"]

    assert folder() == str(collection.store.info.root)
    assert folder(host="0.0.0.0", insecure=True) == ""
    assert folder(proxy="127.0.0.1") == ""
    assert folder(root_path="/photos") == ""


def test_columns_tell_what_can_be_chosen(collection: ServedStore) -> None:
    with client_of(collection) as client:
        path, thing, year = client.get("/api/stores/0/columns").json()
    assert (path["name"], path["kind"]) == ("path", "text")
    assert path["values"] == ["0/", "1/", "2/", "3/", "4/", "5/"]
    assert (thing["name"], thing["kind"], thing["low"], thing["high"]) == ("thing", "number", 0, 5)
    assert (year["name"], year["low"], year["high"]) == ("year", 2000, 2047)

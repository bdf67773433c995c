"""One folder with everything that phones, cameras and old archives leave, through every command."""

import csv
import os
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from helpers.called import call
from helpers.made_formats import dng, save_as, write_video
from insclr.describe.descriptor_file import read_descriptors
from insclr.store import open_store
from insclr.web.server import create_app, open_served

_MODEL = "pretrained:efficientnet_lite0"
_NEW = {"phone.heic", "web.avif", "camera.dng", "clip.mp4#t=0.0", "clip.mp4#t=2.0"}


def _succeed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[str, str]:
    """Output and messages of a command that succeeds."""
    status, shown, said = call(capsys, *arguments)
    assert status == 0, said
    return shown, said


@pytest.fixture(scope="module")
def photos(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn photos, some more in other formats, one broken, and one whose name is not UTF-8."""
    folder = tmp_path_factory.mktemp("formats") / "photos"
    shutil.copytree(small_collection, folder)
    drawn = [Image.open(folder / f"thing{thing}-0.png").resize((640, 640)) for thing in range(3, 8)]
    save_as(drawn[0], folder / "phone.heic")
    save_as(drawn[1], folder / "web.avif")
    (folder / "camera.dng").write_bytes(dng(drawn[2]))
    write_video(folder / "clip.mp4", drawn[3:])
    (folder / "broken.heic").write_bytes(b"\0\0\0\x1cftypheic" + b"\0" * 50)
    (folder / os.fsdecode(b"caf\xe9.png")).write_bytes((folder / "thing0-0.png").read_bytes())
    with (folder / "labels.csv").open("a") as labels:
        names = zip(sorted(_NEW), ("thing5", "thing6", "thing7", "thing3", "thing4"), strict=True)
        labels.writelines(f"{path},{thing}\n" for path, thing in names)
    return folder


_NOT_UTF8 = "1 name that is not UTF-8: not read; rename the files"


def test_check_counts_them(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, _ = _succeed(capsys, "check", photos)
    assert "54 images: 53 usable, 1 unreadable" in shown
    assert "48 PNG, 2 video frames" in shown
    for each in ("1 RAW", "1 HEIF", "1 AVIF", _NOT_UTF8, "unreadable: broken.heic: corrupt"):
        assert each in shown


def test_embed_describes_them(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, said = _succeed(capsys, "embed", _MODEL, photos, "--out", tmp_path / "d.parquet", "--size", "32")
    assert "53 described, 0 kept, 1 unreadable" in shown
    assert _NOT_UTF8 in said
    assert set(read_descriptors(tmp_path / "d.parquet").paths) > _NEW


def test_evaluate_finds_them_by_their_labels(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, _ = _succeed(capsys, "evaluate", _MODEL, "--labels", photos / "labels.csv", "--size", "64")
    assert "53" in shown


def test_index_search_and_serve(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    shown, said = _succeed(capsys, "index", _MODEL, photos, "--store", store)
    assert shown.startswith("53 images in the store: 53 added, 1 unreadable")
    assert _NOT_UTF8 in said
    assert _succeed(capsys, "index", _MODEL, photos, "--store", store)[0].startswith(
        "53 images in the store: 53 unchanged"
    )
    assert "clip.mp4#t=2.0" in _succeed(capsys, "search", store, f"{photos}/clip.mp4#t=2.0", "--top", "1")[0]
    assert "phone.heic" in _succeed(capsys, "search", store, photos / "phone.heic", "--top", "1")[0]
    rows = open_store(store).rows_by_path()
    with TestClient(create_app(open_served([store])), base_url="http://127.0.0.1") as client:
        for path in _NEW:
            answer = client.get(f"/api/stores/0/rows/{rows[path].id}/thumbnail")
            assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg"), path
        query = {"pictures": ("phone.heic", (photos / "phone.heic").read_bytes(), "image/heic")}
        found = client.post("/api/search", files=query, data={"top": 1}).json()["matches"]
        assert found[0]["path"] == "phone.heic"


def test_train_learns_from_them_and_reports_what_it_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [
        *("--set", "rounds.plain_size=64", "--set", "rounds.augmented_size=64"),
        *("--set", "rounds.cached_views=2", "--set", "rounds.steps=5"),
    ]
    shown, said = _succeed(capsys, "train", photos, "--out", tmp_path / "run", "--recipe", "fast", *small)
    assert said.splitlines()[0] == "plan: describe 54 photos, 2 rounds of the last layer, the report"
    lines = shown.splitlines()
    assert lines[2].startswith("left out: 1 of 54 images (all in ")
    assert lines[3].startswith("  broken.heic: corrupt")
    assert lines[4:] == [_NOT_UTF8, f"next    insclr index {tmp_path / 'run'} {photos} --store STORE"]
    with (tmp_path / "run" / "skipped.csv").open() as table:
        assert [row["path"] for row in csv.DictReader(table)] == ["broken.heic"]


def test_a_list_that_is_not_utf8_is_refused_alike(photos: Path) -> None:
    from insclr.data.images import list_images
    from insclr.data.labels import read_labels
    from insclr.errors import UserError

    for name in ("list.csv", "list.txt"):
        file = photos.parent / name
        file.write_bytes(b"path,instance\nphotos/caf\xe9.png,cup\n")
        for read in (list_images, read_labels):
            with pytest.raises(UserError, match="UTF-8"):
                read(file)

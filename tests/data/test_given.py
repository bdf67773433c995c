"""Images as a Python caller gives them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from insclr.data.given import QueryPhoto, UnreadableQuery, is_single
from insclr.files import content_hash


def test_a_query_photo_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (8, 4), "red").save(file)
    content = file.read_bytes()
    photo = QueryPhoto(file)
    file.unlink()
    assert photo.picture(None).size == (8, 4)
    assert photo.hash == content_hash(content)


def test_a_query_photo_in_memory_has_no_hash() -> None:
    photo = QueryPhoto(np.full((4, 8), 7, np.uint8))
    assert (photo.hash, photo.picture(None).getpixel((0, 0))) == ("", (7, 7, 7))


def test_an_unreadable_query_photo_is_reported_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnreadableQuery, match=r"none\.png cannot be searched for: file not found"):
        QueryPhoto(tmp_path / "none.png")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    with pytest.raises(UnreadableQuery) as refused:
        QueryPhoto(tmp_path / "bad.png").picture(None)
    assert refused.value.reason.startswith("not an image")


def test_a_list_or_a_folder_is_not_a_single_image(tmp_path: Path) -> None:
    for name in ("a.png", "list.CSV", "list.txt", "list.parquet"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.png").mkdir()
    assert [path.name for path in sorted(tmp_path.iterdir()) if is_single(path)] == ["a.png"]

"""Queries from files and from memory."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from insclr.files import content_hash
from insclr.retrieval.query import UnreadableQuery, image_query


def test_a_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (8, 4), "red").save(file)
    content = file.read_bytes()
    query = image_query(file)
    file.unlink()
    assert query.decode(2048)[0].size == (8, 4)
    assert query.hash == content_hash(content)


def test_a_part_of_a_file_is_not_the_file(tmp_path: Path) -> None:
    Image.new("RGB", (8, 4), "red").save(tmp_path / "a.png")
    query = image_query(tmp_path / "a.png", (1, 1, 3, 3))
    assert (query.hash, query.decode(2)[1]) == ("", (1, 1, 3, 3))


def test_an_image_in_memory_has_no_hash() -> None:
    query = image_query(np.full((4, 8), 7, np.uint8))
    assert (query.hash, query.decode(8)[0].getpixel((0, 0))) == ("", (7, 7, 7))


def test_an_image_that_cannot_be_read_gives_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnreadableQuery, match=r"none\.png cannot be searched for: file not found"):
        image_query(tmp_path / "none.png")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    with pytest.raises(UnreadableQuery) as refused:
        image_query(tmp_path / "bad.png").decode(8)
    assert refused.value.reason.startswith("not an image")

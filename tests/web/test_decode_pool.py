"""The processes that decode: what they give back, and what becomes of their places."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from insclr.data import decode
from insclr.web.decode_pool import DecodePool, Part
from insclr.web.limits import Busy
from insclr.web.served import ServedStore
from insclr.web.server import create_app


@pytest.fixture
def pool() -> Iterator[DecodePool]:
    pool = DecodePool(workers=1, seconds=30)
    yield pool
    pool.close()


def png(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), "grey").save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def test_a_worker_that_cannot_be_started_leaves_its_place_to_the_next_job(
    pool: DecodePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: Any, **__: Any) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr("insclr.web.decode_pool.subprocess.Popen", no_process)
        for _ in range(2):
            with pytest.raises(Busy):
                pool.pixels(png(8, 8), 8, max_pixels=100)
    assert pool.pixels(png(8, 8), 8, max_pixels=100).whole == (8, 8)


@pytest.mark.parametrize(
    ("part", "factor"),
    # An image of 20 megapixels is reduced as long as the part keeps 2 x 224 pixels: 500 / 1, 1000 / 2.
    [(Part(500, 300, False), 1), (Part(0.1, 0.05, True), 1), (Part(0.1, 0.2, True), 2)],
)
def test_a_large_image_is_reduced_as_far_as_its_part_allows(
    pool: DecodePool, part: Part, factor: int
) -> None:
    found = pool.pixels(png(5000, 4000), 224, part=part, max_pixels=20_000_000)
    assert (found.factor, found.image.size) == (factor, (5000 // factor, 4000 // factor))


def test_the_server_itself_reads_no_photo_for_a_box_in_fractions(
    collection: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> bytes:
        raise AssertionError(f"{path} is read outside of the decoders")

    row = next(iter(collection.store.rows_by_path().values())).id
    monkeypatch.setattr(decode, "read_content", read)
    with TestClient(create_app([collection]), base_url="http://127.0.0.1") as client:
        data = {"rows": f"0:{row}", "row_boxes": "0,0.3,1,1", "box_unit": "fraction"}
        assert client.post("/api/search", data=data).status_code == 200

"""The processes that decode: what they give back, and what becomes of their places."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from insclr.web import decode_pool
from insclr.web.decode_pool import Busy, DecodePool


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
        patched.setattr(decode_pool.subprocess, "Popen", no_process)
        for _ in range(2):
            with pytest.raises(Busy):
                pool.pixels(png(8, 8), 8, max_pixels=100)
    assert pool.pixels(png(8, 8), 8, max_pixels=100).whole == (8, 8)

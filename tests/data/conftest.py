"""Folders made for the tests: good photos, and one of every kind that gives no picture."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.made_files import jpeg_bytes, photo, png_claiming


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of `n` different photos named photo1.jpg, photo2.jpg, ..."""

    def make(n: int, size: tuple[int, int] = (48, 40), name: str = "photos") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for k in range(n):
            photo(*size, seed=k).save(folder / f"photo{k + 1}.jpg", quality=95)
        return folder

    return make


@pytest.fixture
def bad_files(tmp_path: Path) -> dict[str, str]:
    """A folder `bad` with one of every bad case: file name -> how its reason begins."""
    folder = tmp_path / "bad"
    folder.mkdir()
    whole = jpeg_bytes(photo(320, 240))
    scrambled = bytearray(jpeg_bytes(photo(64, 64)))
    scrambled[2:20] = b"\xff\xc0" + b"\0" * 16
    stream = io.BytesIO()
    photo(320, 240).save(stream, "PNG")
    png = stream.getvalue()
    made = {
        "empty.jpg": (b"", "empty file"),
        "text.jpg": (b"<html>404 not found</html>", "not an image"),
        "corrupt.jpg": (bytes(scrambled), "corrupt"),
        "corrupt.png": (png[:8] + b"\0" * 200, "corrupt"),
        "truncated.jpg": (whole[: len(whole) // 2], "truncated"),
        "truncated.png": (png[: len(png) // 2], "truncated"),
        "bomb.png": (png_claiming(30_000, 30_000), "too large"),
    }
    for name, (content, _) in made.items():
        (folder / name).write_bytes(content)
    (folder / "gone.jpg").symlink_to(folder / "nowhere.jpg")
    os.mkfifo(folder / "pipe.jpg")
    (folder / "endless.jpg").symlink_to("/dev/zero")
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    reasons = {name: reason for name, (_, reason) in made.items()}
    return reasons | {
        "gone.jpg": "file not found",
        "pipe.jpg": "not a regular file",
        "endless.jpg": "not a regular file",
        "loop.jpg": "cannot be read: Too many levels of symbolic links",
    }

"""Graphs kept for the next start: read back whole or not at all."""

import logging
import os
from pathlib import Path

import pytest

from insclr.engine import cache as cache_module
from insclr.engine.cache import EngineCache, cache_folder


def test_what_is_written_is_read_with_its_stamp_alone(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "new")
    assert cache.read("graph") is None
    cache.write("graph", "2.0", b"a\nb", {"channels": 3})
    kept = cache.read("graph", "2.0")
    assert kept is not None
    assert (kept.content, kept.about) == (b"a\nb", {"channels": 3})
    assert cache.read("graph", "2.1") is None


@pytest.mark.parametrize("damage", [b"", b"{}\nx", b"[1]\nx", b"\xff\xfe"])
def test_a_damaged_file_is_not_there(tmp_path: Path, damage: bytes) -> None:
    cache = EngineCache(tmp_path)
    (tmp_path / "graph").write_bytes(damage)
    assert cache.read("graph") is None


def test_a_cut_file_and_one_of_another_version_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EngineCache(tmp_path)
    cache.write("graph", "", b"content", {})
    whole = (tmp_path / "graph").read_bytes()
    (tmp_path / "graph").write_bytes(whole[:-1])
    assert cache.read("graph") is None
    (tmp_path / "graph").write_bytes(whole)
    assert cache.read("graph") is not None
    monkeypatch.setattr(cache_module, "__version__", "99")
    assert cache.read("graph") is None


def test_a_read_only_cache_folder_is_reported_once_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = EngineCache(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING):
        cache.write("one", "", b"1", {})
        cache.write("two", "", b"2", {})
    assert caplog.text.count("takes no files") == 1
    assert "INSCLR_CACHE" in caplog.text
    kept = cache.read("two")
    assert kept is not None
    assert kept.content == b"2"


def test_the_longest_unused_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_CACHED_FILES", 2)
    cache = EngineCache(tmp_path)
    for age, name in enumerate(("a", "b")):
        cache.write(name, "", b"", {})
        os.utime(tmp_path / name, (age, age))
    assert cache.read("a") is not None  # used just now
    cache.write("c", "", b"", {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "c"]


def test_files_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_CACHED_FILES", 1)
    (tmp_path / "diary.txt").write_text("not to be made again")
    os.utime(tmp_path / "diary.txt", (0, 0))
    (tmp_path / "photos").mkdir()
    for name in ("a.onnx", "b.onnx"):
        EngineCache(tmp_path).write(name, "", b"", {})
    assert {file.name for file in tmp_path.iterdir()} == {"diary.txt", "photos", "b.onnx"}


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSCLR_CACHE", "/x")
    assert cache_folder() == Path("/x")
    monkeypatch.delenv("INSCLR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/y")
    assert cache_folder() == Path("/y/insclr")


def test_a_folder_that_others_can_write_to_is_not_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user could put a graph with a right digest there, and it would be run."""
    kept = EngineCache(tmp_path / "own")
    kept.write("graph", "1", b"content", {})
    assert (tmp_path / "own").stat().st_mode & 0o077 == 0
    assert kept.read("graph", "1") is not None
    (tmp_path / "own").chmod(0o777)
    assert kept.read("graph", "1") is None
    kept.write("other", "1", b"content", {})
    assert "chmod go-w" in caplog.text
    assert not (tmp_path / "own" / "other").exists()

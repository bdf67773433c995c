"""The list of images that could not be read."""

import csv
import os
from pathlib import Path

from insclr.data.images import Skipped


def test_each_path_is_counted_once_with_its_first_reason(tmp_path: Path) -> None:
    skipped = Skipped()
    skipped.add("a.jpg", "empty file (0 bytes)")
    skipped.add("b, c.jpg", 'corrupt: said "no"')
    skipped.add("a.jpg", "file not found (moved or deleted)")
    assert len(skipped) == 2
    assert "a.jpg" in skipped
    assert "c.jpg" not in skipped
    skipped.write(tmp_path / "run" / "skipped.csv")
    with (tmp_path / "run" / "skipped.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["path", "reason"],
        ["a.jpg", "empty file (0 bytes)"],
        ["b, c.jpg", 'corrupt: said "no"'],
    ]


def test_a_run_without_losses_replaces_the_file_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "skipped.csv").write_text("path,reason\nold.jpg,corrupt\n")
    Skipped().write(tmp_path / "skipped.csv")
    assert (tmp_path / "skipped.csv").read_text() == "path,reason\n"


def test_names_that_are_not_text_are_written_byte_for_byte(tmp_path: Path) -> None:
    skipped = Skipped()
    skipped.add(os.fsdecode(b"caf\xe9.jpg"), "corrupt")
    skipped.write(tmp_path / "skipped.csv")
    assert b"caf\xe9.jpg,corrupt" in (tmp_path / "skipped.csv").read_bytes()

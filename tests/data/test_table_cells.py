"""Cells of exported tables: no formula, no forged line, nothing lost."""

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insclr.data.images import Skipped
from insclr.data.table import one_line, safe_cell, text_of_cell


@pytest.mark.parametrize("text", ["=1+2", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "'=1"])
def test_formulas_are_quoted(text: str) -> None:
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["a=b", "photo.jpg", "", "-5", "+3.5e2", "'tis", "x-y"])
def test_names_and_numbers_are_left_alone(text: str) -> None:
    assert safe_cell(text) == text


@given(st.text(alphabet="'=+-@\t\rab1.", max_size=6))
def test_every_cell_can_be_read_back_and_none_is_a_formula(text: str) -> None:
    cell = safe_cell(text)
    assert text_of_cell(cell) == text
    assert not cell[:1] or cell[0] not in "=@\t\r"


def test_no_name_can_forge_a_line() -> None:
    name = "a.jpg\nunreadable: b.jpg: stolen\x1b[2J\u2028" + os.fsdecode(b"\xff")
    line = one_line(name)
    assert len(line.splitlines()) == 1
    assert line == r"a.jpg\nunreadable: b.jpg: stolen\x1b[2J\u2028\udcff"
    assert one_line("Ängstlich 猫 😀.jpg") == "Ängstlich 猫 😀.jpg"


def test_skipped_names_are_safe_in_the_file_and_read_back_as_they_were(tmp_path: Path) -> None:
    names = ["=HYPERLINK(1).jpg", "'=x.jpg", "a\nb,c.jpg", os.fsdecode(b"\xff.jpg")]
    skipped = Skipped()
    for name in names:
        skipped.add(name, "-broken")
    skipped.write(tmp_path / "skipped.csv")
    text = (tmp_path / "skipped.csv").read_text(errors="surrogateescape")
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert not [cell for cell in cells if cell[0] in "=+-@"]
    again = Skipped()
    again.read(tmp_path / "skipped.csv")
    assert dict(again) == dict.fromkeys(names, "-broken")

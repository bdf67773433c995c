"""Tables that people write: separators, and what is wrong with a malformed one."""

from pathlib import Path

import pytest

from insclr.data.table import read_table
from insclr.errors import UserError


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_lines_come_by_column_with_the_line_that_they_begin_on(tmp_path: Path, separator: str) -> None:
    rows = [[" name", "path"], ['"two\nlines"', " a.jpg"], ["", ""], ["cup", "b.jpg"]]
    (tmp_path / "t.csv").write_text("\ufeff" + "\n".join(separator.join(row) for row in rows))
    assert list(read_table(tmp_path / "t.csv", ("path", "name"))) == [
        (2, {"name": "two\nlines", "path": " a.jpg"}),
        (5, {"name": "cup", "path": "b.jpg"}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", 'no column "path" (it has: none). It needs the columns path, name'),
        (b"path,name,name\n", "is named twice"),
        (b"path,name\na.jpg\n", "line 2: 1 cells"),
        (b'path,name\na.jpg,cup\nb.jpg,"cup\n', "line 3: malformed CSV"),
        (b"path,name\ncaf\xe9.jpg,cup\n", "not UTF-8"),
    ],
)
def test_what_is_malformed_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UserError) as refused:
        list(read_table(tmp_path / "t.csv", ("path", "name")))
    assert message in str(refused.value)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.csv cannot be read"):
        list(read_table(tmp_path / "t.csv", ("path",)))

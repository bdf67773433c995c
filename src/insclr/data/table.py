"""Tables that people write: CSV with a comma, a semicolon or a tab between the columns."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from insclr.errors import UserError
from insclr.files import open_text

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}


def read_table(file: Path | str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, cells by column) of every line that is not blank, for a table with at least these columns.

    Anything malformed is a UserError that names the line.
    """
    start = 1  # the line the record at hand begins on: a quoted cell may hold line ends
    try:
        with open_text(file, encoding="utf-8-sig", newline="") as text:
            separator = separator_of(text.readline(), columns[0])
            text.seek(0)
            reader = csv.reader(text, delimiter=separator, strict=True)
            header = [cell.strip() for cell in next(reader, [])]
            _check_header(file, header, columns)
            start = reader.line_num + 1
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    if len(cells) != len(header):
                        raise UserError(
                            f"{file}, line {start}: {len(cells)} cells, but the header has {len(header)} columns"
                        )
                    yield start, dict(zip(header, cells, strict=True))
                start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{file}, line {start}: malformed CSV ({error}).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text ({error}): save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from error


def separator_of(text: str, column: str) -> str:
    """What separates the columns of a CSV: a comma, or what the spreadsheets of many countries write instead.

    A column that the table must have tells them apart.
    """
    header = text.lstrip("\ufeff").split("\n", 1)[0]
    columns = {sign: [name.strip().strip('"') for name in header.split(sign)] for sign in SEPARATORS}
    return next((sign for sign in SEPARATORS if column in columns[sign]), ",")


def _check_header(file: Path | str, header: list[str], columns: Sequence[str]) -> None:
    for column in columns:
        if column not in header:
            *others, last = columns
            named = f"columns {', '.join(others)} and {last}" if others else f"column {last}"
            raise UserError(f'{file}, line 1: no column "{column}". The first line must name the {named}.')
    if len(set(header)) != len(header):
        raise UserError(f"{file}, line 1: a column name stands twice in the header: {','.join(header)}")

"""CSV tables: read with a comma, a semicolon or a tab, written with cells that no spreadsheet runs as a formula."""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from insclr.errors import UserError
from insclr.files import open_text

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)


def read_table(file: Path | str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, cells by column) of every line that is not blank, for a table with at least these columns.

    Anything malformed is a UserError that names the line.
    """
    start = 1  # the line the record at hand begins on: a quoted cell may hold line ends
    try:
        with open_text(file, encoding="utf-8-sig", newline="") as text:
            # A column that the table must have shows which sign separates them.
            first = text.readline()
            names = {sign: [name.strip().strip('"') for name in first.split(sign)] for sign in SEPARATORS}
            separator = next((sign for sign in SEPARATORS if columns[0] in names[sign]), ",")
            text.seek(0)
            reader = csv.reader(text, delimiter=separator, strict=True)
            header = [cell.strip() for cell in next(reader, [])]
            require_columns(file, header, columns)
            start = reader.line_num + 1
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    if len(cells) != len(header):
                        raise UserError(
                            f"{file}, line {start}: {len(cells)} cells, but the header has {len(header)} columns. "
                            f"Quote a cell that holds a {SEPARATORS[separator]}."
                        )
                    yield start, dict(zip(header, cells, strict=True))
                start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{file}, line {start}: malformed CSV ({error}).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text ({error}): save it as UTF-8.") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from error


def require_columns(file: Path | str, header: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a table that lacks one of the columns or names one twice."""
    for column in columns:
        if column not in header:
            raise UserError(
                f'{file}: no column "{column}" (it has: {", ".join(header) or "none"}). '
                f"It needs the columns {', '.join(columns)}; commas, semicolons or tabs separate them."
            )
    if len(set(header)) != len(header):
        raise UserError(
            f"{file}: a column is named twice ({', '.join(header)}). Give every column its own name."
        )


def safe_cell(text: str) -> str:
    """The text as a CSV cell: with a quote before it where a spreadsheet would take it for a formula.

    Plain numbers stay as they are.
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def text_of_cell(cell: str) -> str:
    """What `safe_cell` made the cell from."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def one_line(text: str) -> str:
    """The text with line ends, terminal codes and bytes that are no text written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)

"""Names and texts of others in what we write: cells that no spreadsheet runs, lines that no name can forge."""

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)


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

"""What a benchmark hands back: rows of one table, some of them with a bar to reach."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line: what was measured, the two sides, their ratio and the bar."""

    what: str
    ours: str
    other: str = ""
    ratio: str = ""
    bar: str = ""
    reached: bool | None = None  # None where there is no bar

    @property
    def verdict(self) -> str:
        """Whether the bar was reached, in a word."""
        return "" if self.reached is None else "reached" if self.reached else "**missed**"


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| what | ours | rival or limit | ratio | bar | |", "|---|---|---|---|---|---|"]
    lines += [f"| {r.what} | {r.ours} | {r.other} | {r.ratio} | {r.bar} | {r.verdict} |" for r in rows]
    return "\n".join(lines)


def milliseconds(value: float) -> str:
    return f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s"

"""`make bench`: measure everything, or the named parts, and write the tables to docs/performance.md.

    python benchmarks/run.py [step] [mining] [pool] [loader] [growth] [cpu]

Each number stands beside its rival or limit, measured in the same run on the same machine.
"""

import importlib
import re
import sys
import time
from pathlib import Path

from machine import describe
from table import Row, markdown

PARTS = {
    "step": "A training step against the bare network",
    "mining": "Mining and loss at the scale of Google Landmarks v2",
    "pool": "The candidate pool against faiss",
    "loader": "The input side",
    "growth": "Growth with the number of images",
    "cpu": "Settings of the network on a CPU",
}
PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
HEAD = """# Performance

Written by `make bench`; one part alone: `python benchmarks/run.py step`. Both sides of a ratio are measured in the
same run, in turns. The machine matters, so each table names it.
"""


def main(wanted: list[str]) -> None:
    unknown = set(wanted) - PARTS.keys()
    if unknown:
        sys.exit(f"There is no part {', '.join(unknown)}. There are: {', '.join(PARTS)}.")
    for part in wanted or PARTS:
        began = time.monotonic()
        rows: list[Row] = importlib.import_module(part).measure()
        table = markdown(rows)
        print(f"\n{PARTS[part]}\n{table}", flush=True)
        _write(part, f"{table}\n\n{describe()}; {time.monotonic() - began:.0f} s.")


def _write(part: str, body: str) -> None:
    """Put the part's section into the page; the other sections stay as they are."""
    text = PAGE.read_text() if PAGE.exists() else HEAD
    sections = dict(re.findall(r"^## (.+?)\n\n(.*?)\s*(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    sections[PARTS[part]] = body
    ordered = [f"## {title}\n\n{sections[title]}\n" for title in PARTS.values() if title in sections]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join([HEAD, *ordered]))


if __name__ == "__main__":
    main(sys.argv[1:])

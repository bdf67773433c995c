"""`make bench`: measure everything, or the named parts, and write the tables to docs/research/performance.md.

    python benchmarks/run.py [engines] [startup] [stores] [step] [calibrated] [mining] [pool] [loader] [growth] [cpu]

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
    "engines": "Describing by each engine",
    "startup": "Starting from the shell",
    "stores": "A million rows in the local store",
    "step": "A training step against the bare network",
    "calibrated": "The method that ships, to 1.2 million images",
    "mining": "Mining and loss at the scale of Google Landmarks v2",
    "pool": "The candidate pool against faiss",
    "loader": "The input side",
    "growth": "Growth with the number of images",
    "cpu": "Settings of the network on a CPU",
}
NOTES = {
    "step": """The bare network has its tensors in memory. The step reads photos that were decoded into a cache before
the clock started (the input side below has the decoding too), cuts views, reads and writes banks,
mines and updates. Both sides are equal within a few per cent: a ratio below 1 is chance.""",
    "mining": """The network is stood in for by 0.1 s of rest, in which the announced bank rows are read by a thread
of their own and the last step's are written; the third row has all of that on the clock. Resident
memory is the process's peak.""",
    "engines": """The same descriptors by each engine that is installed. Processor time of all threads an image, so
that other jobs on the machine change little.""",
    "startup": """Whole commands, from the shell to their end: the best of several runs, and their processor time.""",
    "stores": """Each store is written by one process and searched by another, one query at a time; a query uses all
cores where there are several. Random rows are the hardest case, since there is nothing in them to skip. Memory of
mapped files is memory that the system takes back when it needs it. Before, with the whole store read into memory: 25
ms at recall@10 0.981, the first search after 47 s. Real descriptors are easier: 0.7 ms of processor time a search
among 100,000 like them, 0.15 ms among 18,625 of our own, both at recall@10 1.000; an exact scan 6.9 and 1.1 ms.""",
    "calibrated": """Processor time (all threads) of each stage of a round's beginning, and the memory of its own that
the process holds then, in one process for each N. The step is that of a round on cached features. The candidates of
the largest collection are drawn instead of searched for, and its time is without them: `python
benchmarks/calibrated.py 1200000 --searched 1200000` searches, about two minutes on two cores for every 65,536 images,
and holds 6.7 GB.""",
    "pool": """Everybody's neighbours at once; building an index counts. The drawn vectors have the effective rank of
real descriptors (see `benchmarks/pool.py`); that spread was chosen after seeing ratios for others. What a rival
visits is raised until its recall reaches ours. Vectors without neighbourhoods are noticed and searched exactly.
On real descriptors (products60 and 1,024 images of landmarks44 with four augmented views each: 18,625 x 512, P = 100)
ours takes less processor time than flat by 3.3 x, IVF by 2.0 x and HNSW by 5.1 x; on 30,000 like them by 4.4, 2.1 and
5.7 x (2026-11-17). Inverted lists with 4-bit codes and exact rescoring took twice as long as ours.""",
    "loader": """A step needs 64 images at most every 1.7 s on this machine, 38 a second: the input side is more than
ten times ahead of it, but for photos of 2048 x 1536 that are not decoded yet, where it is three times ahead.""",
    "cpu": """What ships is channels-last images, fp32, all cores, no compilation, freed memory kept. The rival is
the same with the one change named, so a ratio above 1 is a choice that pays. Without bf16
arithmetic in the processor bf16 is emulated.""",
}
PAGE = Path(__file__).resolve().parents[1] / "docs" / "research" / "performance.md"
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
        note = f"{NOTES[part]}\n\n" if part in NOTES else ""
        _write(part, f"{note}{table}\n\n{describe()}; {time.monotonic() - began:.0f} s.")


def _write(part: str, body: str) -> None:
    """Put the part's section into the page; the other sections stay as they are."""
    text = PAGE.read_text() if PAGE.exists() else HEAD
    sections = dict(re.findall(r"^## (.+?)\n\n(.*?)\s*(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    sections[PARTS[part]] = body
    others = [title for title in sections if title not in PARTS.values()]  # written by hand
    titles = [*others, *(title for title in PARTS.values() if title in sections)]
    ordered = [f"## {title}\n\n{sections[title]}\n" for title in titles]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join([HEAD, *ordered]))


if __name__ == "__main__":
    main(sys.argv[1:])

"""`make bench`: measure everything, or the named parts, and write the tables to docs/research/performance.md.

    python benchmarks/run.py [engines] [startup] [stores] [step] [calibrated] [mining] [pool] [loader] [large_photos]
        [growth] [cpu]

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
    "calibrated": "The calibrated method, to 1.2 million images",
    "mining": "Mining and loss at the scale of Google Landmarks v2",
    "pool": "The candidate pool against faiss",
    "loader": "The input side",
    "large_photos": "Indexing photos of 12 megapixels",
    "growth": "Growth with the number of images",
    "cpu": "Settings of the network on a CPU",
}
NOTES = {
    "step": """The bare network has its tensors in memory. The step decodes images, cuts views, reads and writes
banks, mines and updates. Both sides are equal within a few per cent: a ratio below 1 is chance.""",
    "mining": """A pause of 0.1 s replaces the network. Reading and writing bank rows is part of the time. Resident
memory is the peak of the process.""",
    "engines": """The same descriptors by each installed engine. Processor time of all threads an image, so that
other jobs on the machine change little.""",
    "startup": """Whole commands from the shell: the best of several runs, and their processor time.""",
    "stores": """One process writes each store, another searches it, one query at a time on all cores. Random rows
are the hardest case, because an index cannot skip any. The system can reclaim the memory of mapped files. With the
whole store read into memory, an earlier version took 25 ms at recall@10 0.981, and 47 s until the first search.
Real descriptors are easier: 0.7 ms of processor time a search among 100,000 like them, 0.15 ms among 18,625 of our
own, both at recall@10 1.000; an exact scan takes 6.9 and 1.1 ms.""",
    "calibrated": """Processor time (all threads) of each stage at the beginning of a round, and the private memory
of the process, in one process for each N. The step is that of a round on cached features. The candidates of the
largest collection are drawn instead of searched, so its time excludes the search: `python benchmarks/calibrated.py
1200000 --searched 1200000` searches, in about two minutes on two cores for every 65,536 images, with 6.7 GB.""",
    "pool": """The neighbours of all rows at once, including the time to build an index. The drawn vectors have the
effective rank of real descriptors (see `benchmarks/pool.py`); that spread was chosen after seeing ratios for
others. The effort of a rival is raised until its recall reaches ours. Vectors without neighbourhoods are detected
and searched exactly.""",
    "loader": """A step needs 64 images at most every 1.7 s on this machine, 38 a second.""",
    "large_photos": """`insclr index` with a model of `fast` at 320 px and two views, without start-up and without
local features, which take a second decoding and about 80 ms a photo more.""",
    "cpu": """The shipped settings are channels-last images, fp32, all cores, no compilation, freed memory kept. The
rival is the same with the one named change, so a ratio above 1 is in favour of the shipped setting. A processor
without bf16 arithmetic emulates it.""",
}
PAGE = Path(__file__).resolve().parents[1] / "docs" / "research" / "performance.md"
HEAD = """# Performance

`make bench` writes this page; `python benchmarks/run.py step` writes one part. Both sides of a ratio are measured in
the same run, alternating. Each table names its machine.
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
    titles = [*(title for title in PARTS.values() if title in sections), *others]
    ordered = [f"## {title}\n\n{sections[title]}\n" for title in titles]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join([HEAD, *ordered]))


if __name__ == "__main__":
    main(sys.argv[1:])

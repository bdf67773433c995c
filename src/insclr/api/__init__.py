"""The commands as functions; `insclr` has them all.

A model is the result of `load` or `insclr.train`, or a name: a run folder, a model file or pretrained:NAME.
Images are a folder, a list file, an `ImageList`, one path or several. The examples assume a folder PHOTOS and the run
RUN of `insclr.train`.

Mistakes in a request are reported before torch is imported: most modules are imported where they are used.
"""

from insclr.api.measuring import compare, evaluate
from insclr.api.models import Embedded, check, embed, export, load, whiten
from insclr.api.searching import answers, calibrate, cluster, duplicates, index, names, search

__all__ = [
    "Embedded",
    "answers",
    "calibrate",
    "check",
    "cluster",
    "compare",
    "duplicates",
    "embed",
    "evaluate",
    "export",
    "index",
    "load",
    "names",
    "search",
    "whiten",
]

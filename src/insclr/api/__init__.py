"""What commands do, as functions: `import insclr` shows them all.

A model is what `load` or `insclr.train` gives, or what names one: a run folder, a model file or pretrained:NAME.
Images are a folder, a list file, an `ImageList`, one path or several. The examples assume a folder PHOTOS and the run
RUN of `insclr.train`.

What can be wrong with a request is told before torch is imported: most of it is imported where it is used.
"""

from insclr.api.measuring import compare, evaluate
from insclr.api.models import AnyModel, Describing, Embedded, check, embed, export, load, whiten
from insclr.api.searching import answers, calibrate, cluster, duplicates, index, names, search

__all__ = [
    "AnyModel",
    "Describing",
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

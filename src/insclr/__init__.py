"""InsCLR: teach a network the particular things in your photos, without labels, and search them.

    import insclr

    model = insclr.train("photos", "run", minutes=10)     # a run folder, resumable
    insclr.index(model, "photos", "store")                # only what is new or changed
    matches = insclr.search("store", "photo.jpg")         # every photo of that thing

Names are loaded on first use: `import insclr` alone costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from insclr.api import (
        Embedded,
        answers,
        calibrate,
        check,
        cluster,
        compare,
        duplicates,
        embed,
        evaluate,
        export,
        index,
        load,
        names,
        search,
        whiten,
    )
    from insclr.data.images import ImageList, list_images
    from insclr.errors import UserError
    from insclr.jobs.learn import learn
    from insclr.jobs.train import train
    from insclr.model.model_file import Model
    from insclr.recipe import Recipe, load_recipe
    from insclr.retrieval.search import Match
    from insclr.sharing.pull import pull
    from insclr.sharing.push import push

__version__ = "0.1.0"

# Every public name and the module that has it.
_WHERE = {
    "Embedded": "insclr.api",
    "ImageList": "insclr.data.images",
    "Match": "insclr.retrieval.search",
    "Model": "insclr.model.model_file",
    "Recipe": "insclr.recipe",
    "UserError": "insclr.errors",
    "answers": "insclr.api",
    "calibrate": "insclr.api",
    "check": "insclr.api",
    "cluster": "insclr.api",
    "compare": "insclr.api",
    "duplicates": "insclr.api",
    "embed": "insclr.api",
    "evaluate": "insclr.api",
    "export": "insclr.api",
    "index": "insclr.api",
    "learn": "insclr.jobs.learn",
    "list_images": "insclr.data.images",
    "load": "insclr.api",
    "load_recipe": "insclr.recipe",
    "names": "insclr.api",
    "pull": "insclr.sharing.pull",
    "push": "insclr.sharing.push",
    "search": "insclr.api",
    "train": "insclr.jobs.train",
    "whiten": "insclr.api",
}

__all__ = [
    "Embedded",
    "ImageList",
    "Match",
    "Model",
    "Recipe",
    "UserError",
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
    "learn",
    "list_images",
    "load",
    "load_recipe",
    "names",
    "pull",
    "push",
    "search",
    "train",
    "whiten",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'insclr' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

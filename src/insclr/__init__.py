"""InsCLR: train a network on the particular things in your photos, without labels, and search them.

    import insclr

    model = insclr.train("photos", "run", minutes=10)     # a run folder, resumable
    insclr.index(model, "photos", "store")                # only what is new or changed
    matches = insclr.search("store", "photo.jpg")         # every photo of that thing

Only the names in `insclr.__all__` are public; everything else may change without notice. Names are loaded on first
use, so that `import insclr` alone costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers
    from insclr.api import *  # noqa: F403
    from insclr.data.images import ImageList as ImageList
    from insclr.data.images import list_images as list_images
    from insclr.errors import UserError as UserError
    from insclr.jobs.learn import learn as learn
    from insclr.jobs.learn import models as models
    from insclr.jobs.train import train as train
    from insclr.model.model_file import Model as Model
    from insclr.recipe import Recipe as Recipe
    from insclr.recipe import load_recipe as load_recipe
    from insclr.retrieval.search import Match as Match
    from insclr.sharing.hub import pull as pull
    from insclr.sharing.push import push as push

__version__ = "0.1.0"

_PUBLIC = {
    "insclr.api": "Embedded answers calibrate check cluster compare duplicates embed evaluate export index load "
    "names search whiten",
    "insclr.data.images": "ImageList list_images",
    "insclr.errors": "UserError",
    "insclr.jobs.learn": "learn models",
    "insclr.jobs.train": "train",
    "insclr.model.model_file": "Model",
    "insclr.recipe": "Recipe load_recipe",
    "insclr.retrieval.search": "Match",
    "insclr.sharing.hub": "pull",
    "insclr.sharing.push": "push",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'insclr' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        from insclr.errors import needs_torch

        raise needs_torch(error) or error from None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

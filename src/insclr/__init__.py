"""InsCLR: teach a network the particular things in your photos, without labels, and search them.

    import insclr

    model = insclr.train("photos", "run")            # a run folder, resumable
    vectors = insclr.embed(model, "photos")          # one unit vector a photo
    model = insclr.load("run")                       # the same model again

Names are loaded on first use: `import insclr` alone costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from insclr.data.images import ImageList, list_images
    from insclr.errors import UserError
    from insclr.jobs.train import train
    from insclr.model.model_file import Model
    from insclr.model.model_file import resolve_model as load
    from insclr.recipe import Recipe, load_recipe
    from insclr.retrieval.describe import describe_images as embed

__version__ = "0.1.0"

_WHERE = {
    "ImageList": ("insclr.data.images", "ImageList"),
    "Model": ("insclr.model.model_file", "Model"),
    "Recipe": ("insclr.recipe", "Recipe"),
    "UserError": ("insclr.errors", "UserError"),
    "embed": ("insclr.retrieval.describe", "describe_images"),
    "list_images": ("insclr.data.images", "list_images"),
    "load": ("insclr.model.model_file", "resolve_model"),
    "load_recipe": ("insclr.recipe", "load_recipe"),
    "train": ("insclr.jobs.train", "train"),
}

__all__ = [
    "ImageList",
    "Model",
    "Recipe",
    "UserError",
    "embed",
    "list_images",
    "load",
    "load_recipe",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'insclr' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(importlib.import_module(module), attribute)

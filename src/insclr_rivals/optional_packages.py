"""Packages that only some rivals need: imported on use; a missing one is an error that names it."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from insclr.errors import UserError
from insclr.torchvision_import import import_torchvision


def lightly(module: str) -> Any:
    """A module of lightly, whose losses and heads the image-level methods are built on."""
    import_torchvision()  # lightly imports it, and it may need help
    return _import(f"lightly.{module}")


def metric_learning(module: str) -> Any:
    """A module of pytorch-metric-learning."""
    return _import(f"pytorch_metric_learning.{module}")


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Initialise layers inside by this seed, without a change to the random state of the run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"This method needs {name.split('.')[0].replace('_', '-')}, which is not installed: "
            "pip install 'insclr[rivals]'."
        ) from error

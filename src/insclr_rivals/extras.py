"""Packages that only some methods need: imported when asked for, with a sentence where they are missing."""

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
    return _imported(f"lightly.{module}")


def metric_learning(module: str) -> Any:
    """A module of pytorch-metric-learning."""
    return _imported(f"pytorch_metric_learning.{module}")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Layers that are made here start the same for equal seeds; the chance of the run itself goes on undisturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"This method needs {name.split('.')[0].replace('_', '-')}, which is not installed: "
            "pip install 'insclr[rivals]'."
        ) from error

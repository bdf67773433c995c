"""Import timm, and with it torchvision, beside a torch build that lacks torchvision's compiled operators.

torchvision's wheel is linked against CUDA libraries. Beside a CPU-only torch its binary does not load, and
`import torchvision` fails with "operator torchvision::nms does not exist" while it registers shape rules for
operators that were never defined. InsCLR uses none of those operators. Where the import fails for this reason, the
missing operator schemas are defined and the import is tried again.
"""

import importlib
import sys
from typing import Any

import torch

_MISSING_OPERATORS = ("nms", "qnms")
# A library object removes its definitions when it is garbage collected: keep it for the life of the process.
_libraries: list[torch.library.Library] = []


def import_torchvision() -> Any:
    """Import torchvision, defining its missing operator schemas where that alone stops the import."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _MISSING_OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)
    return importlib.import_module("torchvision")


def import_timm() -> Any:
    """Import timm after torchvision."""
    import_torchvision()
    return importlib.import_module("timm")

"""Import torchvision beside a torch build that lacks its compiled operators.

torchvision's wheel is linked against CUDA libraries. Beside a CPU-only torch its binary does not load, and
`import torchvision` then fails with "operator torchvision::nms does not exist" while registering shape rules
for operators that were never defined. InsCLR uses none of those operators: only transforms, in Python. So
where the import fails for exactly that reason, the two missing operator schemas are defined and the import
is tried again. Everything that needs torchvision, or timm which imports it, imports this module first.

torchvision also loads its models, and with them most of torch's compiler: seconds at every start, for nothing. Both
are left out, and loaded by whoever asks for them afterwards.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

import torch

from insclr.lean_imports import stood_in_for

_MISSING_OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
# A library object undoes its definitions when it is garbage collected: keep it for the life of the process.
_kept_libraries: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Give back torchvision, defining its missing operator schemas where that alone stops the import."""
    try:
        return _import()
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _MISSING_OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _kept_libraries.append(library)
    return _import()


def import_timm() -> Any:
    """Give back timm, whose only use of torchvision's models is one that it can do without."""
    import_torchvision()
    with stood_in_for({"torchvision.models": None, "torchvision.models.feature_extraction": None}):
        return importlib.import_module("timm")


def _import() -> ModuleType:
    compiler = ModuleType("torch._dynamo.utils")
    compiler.is_compile_supported = _is_compile_supported  # type: ignore[attr-defined]  # all that is asked of it
    models = ModuleType("torchvision.models")
    with stood_in_for({"torchvision.models": models, compiler.__name__: compiler}):
        return importlib.import_module("torchvision")


def _is_compile_supported(device: Any) -> Any:
    return importlib.import_module("torch._dynamo.utils").is_compile_supported(device)


import_torchvision()

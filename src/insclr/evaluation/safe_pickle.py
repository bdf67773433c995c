"""Ground-truth pickles are untrusted input: only plain values and numpy arrays are let in."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy._core import multiarray, numeric

from insclr.errors import UserError
from insclr.files import open_file


def load_pickle(file: Path | str) -> object:
    """Read dicts, lists, strings, numbers and numpy arrays; a pickle that asks for anything else is refused.

    Nothing from the file is ever run. Pickles written by Python 2 are read as Latin-1.
    """
    file = Path(file)
    try:
        with open_file(file) as stream:
            return _RestrictedUnpickler(stream, encoding="latin1").load()
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


def _latin1(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes into pickles that Python 2 can read.
    if encoding not in ("latin1", "latin-1"):
        raise _Refused(f"the codec {encoding}")
    return text.encode("latin1")


def _array_names() -> dict[tuple[str, str], Callable[..., object]]:
    """What numpy's own pickles call, under the module names of numpy 1 and numpy 2."""
    known: dict[tuple[str, str], Callable[..., object]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }
    for core in ("numpy.core", "numpy._core"):
        known[(f"{core}.multiarray", "_reconstruct")] = multiarray._reconstruct
        known[(f"{core}.multiarray", "scalar")] = multiarray.scalar
        known[(f"{core}.numeric", "_frombuffer")] = numeric._frombuffer  # type: ignore[attr-defined]
    return known


class _RestrictedUnpickler(pickle.Unpickler):
    _allowed = _array_names()

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) not in self._allowed:
            raise _Refused(f"{module}.{name}")
        return self._allowed[(module, name)]

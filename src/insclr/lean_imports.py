"""Import a library without parts of it that nobody here uses and that take seconds to load."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def stood_in_for(stand_ins: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Inside the block, modules that are not loaded yet are their stand-ins; None is a module that is not there.

    Afterwards all is as if nobody had asked for them: whoever imports one gets the real one.
    """
    placed = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(placed)  # type: ignore[arg-type]  # None is what the import system means by "not there"
    try:
        yield
    finally:
        for name, module in placed.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if module is not None and getattr(sys.modules.get(parent), child, None) is module:
                delattr(sys.modules[parent], child)

"""Feature sources: where the descriptors of a step come from."""

from collections.abc import Iterator
from typing import Protocol

from insclr.methods.batch import Batch


class Source(Protocol):
    """Gives the batch of every step, in order."""

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """The batches of the steps first ... last - 1."""

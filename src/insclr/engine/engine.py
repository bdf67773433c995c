"""The protocol of every inference engine, and the last layer that all but torch compute with numpy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from insclr.data.views import Images, at_scale

EngineName = Literal["torch", "onnx", "openvino"]
# What a network gives for an image: the backbone's map (B, C, h, w), pooled features (B, C), and the unit
# descriptor (B, dim). "early" is the map that enters the late layers, from a graph of its own.
Output = Literal["map", "pooled", "descriptor", "early"]
Features = NDArray[np.float32]
_USUAL_SIDE = 224


class Engine(Protocol):
    """Runs a network on images, without gradients; may be called by several threads at once."""

    name: EngineName
    about: str  # for people: the engine and its version
    dim: int  # of a descriptor
    channels: int  # of a map and of pooled features
    batch: int  # how many images of a usual size it likes at once

    def run(
        self, images: Images, wanted: Sequence[Output] = ("descriptor",), scale: float = 1.0
    ) -> list[Features]:
        """The wanted outputs for images (B, 3, H, W) in the range 0..255, all from one pass.

        `scale` other than 1 enlarges or reduces the images first, as `at_scale` does.
        """


@dataclass(frozen=True)
class Head:
    """The fully connected layer behind the pooled features, and the norm; without weights only what is there."""

    weight: Features | None = None  # (dim, C)
    bias: Features | None = None  # (dim,)

    def __call__(self, pooled: Features) -> Features:
        """Unit descriptors (B, dim) of pooled features (B, C)."""
        if self.weight is None:
            return pooled
        rows = pooled @ self.weight.T
        return unit_rows(rows if self.bias is None else rows + self.bias)


class GraphEngine(ABC):
    """What the engines that run an exported graph have in common; they say how it is run."""

    name: EngineName
    batch = (
        4  # larger ones are no faster: they do not fit into the cache of a core, and every thread has its own
    )

    def __init__(self, about: str, outputs: Sequence[str], channels: int, head: Head) -> None:
        self.about = about
        self.channels = channels
        self.dim = channels if head.weight is None else len(head.weight)
        self._outputs = list(outputs)
        self._head = head

    def run(
        self, images: Images, wanted: Sequence[Output] = ("descriptor",), scale: float = 1.0
    ) -> list[Features]:
        """The wanted outputs for images (B, 3, H, W) in the range 0..255, all from one pass."""
        pixels = np.ascontiguousarray(at_scale(images, scale), dtype=np.float32)
        names = ["pooled" if name == "descriptor" else name for name in wanted]
        needed = [name for name in self._outputs if name in names]
        found: dict[str, Any] = dict(zip(needed, self._infer(pixels, needed), strict=True))
        return [
            self._head(found[name]) if one == "descriptor" else found[name]
            for one, name in zip(wanted, names, strict=True)
        ]

    @abstractmethod
    def _infer(self, pixels: Features, needed: Sequence[str]) -> list[Features]:
        """The outputs of the graph with these names, in its own order."""


def images_at_once(engine: Engine, sides: Sequence[int], scales: Sequence[float] = (1.0,)) -> int:
    """How many images of these sides, at these scales, an engine is to see at once.

    As many pixels as its batch has at a usual size: what it holds meanwhile is many times that.
    """
    largest = max(1.0, *scales) ** 2 * sides[0] * sides[1]
    return max(1, min(engine.batch, int(engine.batch * _USUAL_SIDE**2 // largest)))


def unit_rows(rows: Features) -> Features:
    """The rows divided by their lengths; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12), dtype=np.float32)

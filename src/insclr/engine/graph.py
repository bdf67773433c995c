"""A network as a graph that other programs run: found in the cache by its weights, else exported and verified."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from insclr.engine.cache import EngineCache
from insclr.model.stored import Weights, digest
from insclr.recipe import NetworkRecipe

if TYPE_CHECKING:
    from insclr.model.network import DescriptorNetwork

Kind = Literal["trunk", "early"]


class CannotExport(Exception):
    """A network that no graph can express; the text gives the reason."""


@dataclass(frozen=True)
class Graph:
    """An ONNX graph from images (B, 3, H, W), float32, to its outputs."""

    key: str
    content: bytes
    outputs: tuple[str, ...]
    channels: int  # of the last output
    side: int = 0  # of the square images that alone it takes; 0: images of any size


@dataclass(frozen=True)
class GraphSource:
    """What a graph is made of: a name for it, and the network for when it has to be made."""

    digest: str
    network: "Callable[[], DescriptorNetwork]"


def trunk_digest(recipe: NetworkRecipe, weights: Weights) -> str:
    """A name for backbone and pooling with these weights; the last layer, which training changes, is not in it."""
    trunk = {name: value for name, value in weights.items() if not name.startswith("fc.")}
    normalised = recipe.normalise_pooled or not recipe.dim
    settings = f"{recipe.backbone} {recipe.pooling} {recipe.gem_p} {normalised}"
    return hashlib.sha256(f"{settings} {digest(trunk, {})}".encode()).hexdigest()[:24]


def find_graph(source: GraphSource, kind: Kind, size: int, *, square: bool, cache: EngineCache) -> Graph:
    """The graph for images of any size, or where that is impossible and `square`, for images of size x size.

    CannotExport where there is neither.
    """
    keys = [f"{source.digest}-{kind}", *([f"{source.digest}-{kind}-{size}"] if square else [])]
    for key in keys:
        if (kept := cache.read(f"{key}.onnx")) is not None:
            side = 0 if key == keys[0] else size
            return Graph(key, kept.content, tuple(kept.about["outputs"]), kept.about["channels"], side)
    refused, torch_version = f"{keys[-1]}.refused", version("torch")
    if (kept := cache.read(refused, torch_version)) is not None:
        raise CannotExport(kept.content.decode())
    from insclr.engine.export import export_trunk

    try:
        made = export_trunk(source.network(), kind, size, square=square)
    except CannotExport as error:
        cache.write(refused, torch_version, str(error).encode(), {})
        raise
    key = keys[-1] if made.one_size else keys[0]
    about = {"outputs": made.outputs, "channels": made.channels}
    cache.write(f"{key}.onnx", "", made.content, about)
    return Graph(key, made.content, made.outputs, made.channels, size if made.one_size else 0)

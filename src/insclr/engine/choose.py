"""Choose the engine of a network: the fastest installed one that can run it, reported in one line."""

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

from insclr.data.workers import usable_cores
from insclr.engine.cache import EngineCache
from insclr.engine.engine import Engine, EngineName, Head
from insclr.errors import INSTALL_TORCH, UserError, has_torch, require_torch
from insclr.model.device import pick_device, require_device_name
from insclr.model.stored import Weights
from insclr.recipe import NetworkRecipe
from insclr.recipe.backbone_names import EMBEDDED

if TYPE_CHECKING:
    from insclr.model.network import DescriptorNetwork

logger = logging.getLogger(__name__)

Kind = Literal["trunk", "early"]
GraphMaker = Callable[[Kind], tuple[bytes, int]]  # content, and channels of the last output
OUTPUTS: dict[Kind, tuple[str, ...]] = {"trunk": ("map", "pooled"), "early": ("early",)}
OPSET = 17  # of every graph
Wanted = Literal["auto", "torch", "onnx", "openvino"]
# Of these at least one is there wherever PyTorch could find a GPU; asking it would take seconds.
_GPU_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia/version")
_INSTALL = {
    "onnx": "pip install onnxruntime",
    "openvino": "pip install 'insclr[openvino]'",
    "torch": INSTALL_TORCH,
}
_MODULE = {"onnx": "onnxruntime", "openvino": "openvino", "torch": "torch"}
# OpenVINO is faster an image, but takes as much longer to start as it saves on so many.
_FEW_IMAGES = 8


class CannotExport(Exception):
    """A network that no graph can express; the text gives the reason."""


@dataclass(frozen=True)
class Graph:
    """An ONNX graph from images (B, 3, H, W), float32, to its outputs."""

    key: str
    content: bytes
    outputs: tuple[str, ...]
    channels: int  # of the last output


@dataclass(frozen=True)
class NetworkSource:
    """What an engine is made of: a name for the trunk, the network for making its graph, and the last layer."""

    digest: str
    network: "Callable[[], DescriptorNetwork]"
    head: Head = field(default_factory=Head)
    graph: GraphMaker | None = None  # makes the graph without torch


@dataclass(frozen=True)
class EngineOptions:
    """Which engine runs a network, and for what."""

    engine: str = "auto"
    device: str = "auto"
    streams: int = 0  # calls at a time, each on its share of the cores; 0: one a core, best for many images
    expected: int = (
        0  # images it will describe; 0: unknown. For a few, "auto" prefers the engine that starts sooner
    )
    bf16: bool = False  # compute in these short numbers, where the engine can


AUTO = EngineOptions()


def graph_maker(recipe: NetworkRecipe, weights: Callable[[], Weights]) -> GraphMaker | None:
    """What makes the graph of a network without torch, from its weights; None where only torch can."""
    if recipe.backbone != EMBEDDED:
        return None

    def make(kind: Kind) -> tuple[bytes, int]:
        from insclr.engine.embedded_graph import embedded_graph

        return embedded_graph(recipe, weights(), kind)

    return make


def find_graph(source: NetworkSource, kind: Kind, size: int, cache: EngineCache) -> Graph:
    """The graph of a network, verified at this size when it is made; CannotExport where there is none."""
    key = f"{source.digest}-{kind}"
    if (kept := cache.read(f"{key}.onnx")) is not None:
        return Graph(key, kept.content, OUTPUTS[kind], kept.about["channels"])
    if source.graph is not None:
        return _keep(cache, key, kind, *source.graph(kind))
    require_torch("the graph of this network is made")
    refused, torch_version = f"{key}-{size}.refused", version("torch")
    if (kept := cache.read(refused, torch_version)) is not None:
        raise CannotExport(kept.content.decode())
    from insclr.engine.export import export_trunk

    try:
        content, channels = export_trunk(source.network(), kind, size)
    except CannotExport as error:
        cache.write(refused, torch_version, str(error).encode(), {})
        raise
    return _keep(cache, key, kind, content, channels)


def _keep(cache: EngineCache, key: str, kind: Kind, content: bytes, channels: int) -> Graph:
    cache.write(f"{key}.onnx", "", content, {"channels": channels})
    return Graph(key, content, OUTPUTS[kind], channels)


def require_engine(wanted: str, device: str) -> None:
    """Refuse an engine or a device that does not exist, and the two together where they do not fit."""
    if wanted not in get_args(Wanted):
        raise UserError(f"There is no engine {wanted!r}: choose auto, torch, onnx or openvino.")
    require_device_name(device)
    if wanted in ("onnx", "openvino") and device not in ("auto", "cpu"):
        raise UserError(f"The engine {wanted} runs on the CPU: leave --device out, or choose --engine torch.")
    if wanted != "auto" and not _is_installed(wanted):
        raise UserError(
            f"The engine {wanted} is not installed: {_INSTALL[wanted]}, or choose another --engine."
        )


def on_cpu(device: str) -> bool:
    """Whether a device, by the name a user gives, is the CPU; asks torch only where there may be another."""
    if device == "auto" and not has_torch():
        return True
    if device == "auto" and os.name == "posix" and os.uname().sysname == "Linux":
        return not any(map(os.path.exists, _GPU_NODES)) or pick_device(device).type == "cpu"
    return device == "cpu" or pick_device(device).type == "cpu"


def open_engine(
    source: NetworkSource,
    *,
    size: int,
    options: EngineOptions = AUTO,
    kind: Kind = "trunk",
    cache: EngineCache | None = None,
) -> Engine:
    """An engine for a network; a graph is verified at `size` when it is made.

    With "auto" an engine that is missing, or that cannot express the network, is passed over with a warning; one that
    was asked for is a UserError.
    """
    wanted = options.engine
    require_engine(wanted, options.device)
    if wanted == "torch" or (wanted == "auto" and not on_cpu(options.device)):
        return _report(_torch(source, options))
    cache = cache or EngineCache()
    by_speed: tuple[EngineName, ...] = ("openvino", "onnx")
    in_order = by_speed[::-1] if 0 < options.expected <= _FEW_IMAGES else by_speed
    names = [one for one in in_order if wanted in ("auto", one) and _is_installed(one)]
    try:
        graph = find_graph(source, kind, size, cache)
    except CannotExport as error:
        if wanted != "auto":
            raise UserError(f"{error}. Leave --engine out, or choose torch.") from error
        logger.warning("%s: torch describes instead", error)
        names = []
    for name in names:
        try:
            return _report(start_engine(name, graph, source.head, options, cache))
        except (
            Exception
        ) as error:  # each engine has errors of its own; any of them means that it does not work
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            reason = f"the engine {name} does not start ({first})"
            if wanted != "auto":
                raise UserError(f"{reason}: {_INSTALL[name]} again, or leave --engine out.") from error
            logger.warning("%s: another takes its place", reason)
    return _report(_torch(source, options))


def start_engine(
    name: EngineName, graph: Graph, head: Head, options: EngineOptions, cache: EngineCache
) -> Engine:
    """Open the engine of this name on a graph."""
    cores = usable_cores()
    streams = min(options.streams or cores, cores)
    threads = max(1, cores // streams)
    if name == "openvino":
        from insclr.engine.openvino_engine import OpenVinoEngine

        return OpenVinoEngine(graph, head, threads, streams, cache, options.bf16)
    from insclr.engine.onnx_engine import OnnxEngine

    return OnnxEngine(graph, head, threads)


def _torch(source: NetworkSource, options: EngineOptions) -> Engine:
    from insclr.engine.torch_engine import TorchEngine

    network = source.network()
    network.to(pick_device(options.device))
    return TorchEngine(network, options.streams)


def _is_installed(name: str) -> bool:
    return find_spec(_MODULE[name]) is not None


def _report(engine: Engine) -> Engine:
    _log_once(engine.about)
    return engine


@functools.cache
def _log_once(about: str) -> None:
    logger.info("photos are described by %s", about)

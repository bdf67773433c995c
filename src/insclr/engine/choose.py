"""Which engine runs a network: the fastest that is there and can express it, chosen and reported in one line."""

import functools
import logging
import os
from importlib.util import find_spec
from typing import Literal, get_args

from insclr.data.workers import usable_cores
from insclr.engine.cache import EngineCache
from insclr.engine.engine import Engine, EngineName, Head
from insclr.engine.graph import CannotExport, Graph, GraphSource, Kind, find_graph
from insclr.errors import UserError
from insclr.model.device import pick_device, require_device_name

logger = logging.getLogger(__name__)

Wanted = Literal["auto", "torch", "onnx", "openvino"]
# Of these at least one is there wherever PyTorch could find a GPU; asking it would take seconds.
_GPU_NODES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia/version")
_INSTALL = {"onnx": "pip install onnxruntime", "openvino": "pip install 'insclr[openvino]'"}
_MODULE = {"onnx": "onnxruntime", "openvino": "openvino"}
# OpenVINO is faster an image, but takes as much longer to start as it saves on so many.
_FEW_IMAGES = 8


def require_engine(wanted: str, device: str) -> None:
    """Refuse an engine or a device that does not exist, and the two together where they do not fit."""
    if wanted not in get_args(Wanted):
        raise UserError(f"There is no engine {wanted!r}: choose auto, torch, onnx or openvino.")
    require_device_name(device)
    if wanted in _MODULE:
        if device not in ("auto", "cpu"):
            raise UserError(
                f"The engine {wanted} runs on the CPU: leave --device out, or choose --engine torch."
            )
        if not _is_installed(wanted):
            raise UserError(
                f"The engine {wanted} is not installed: {_INSTALL[wanted]}, or choose another --engine."
            )


def on_cpu(device: str) -> bool:
    """Whether a device, by the name a user gives, is the CPU; asks torch only where there may be another."""
    if device == "auto" and os.name == "posix" and os.uname().sysname == "Linux":
        return not any(map(os.path.exists, _GPU_NODES)) or pick_device(device).type == "cpu"
    return device == "cpu" or pick_device(device).type == "cpu"


def open_engine(
    source: GraphSource,
    head: Head,
    *,
    size: int,
    square: bool,
    wanted: str = "auto",
    device: str = "auto",
    streams: int = 0,
    expected: int = 0,
    kind: Kind = "trunk",
    cache: EngineCache | None = None,
    bf16: bool = False,
) -> Engine:
    """An engine for a network, at `size`, square images or of any shape.

    `streams` calls can run at a time, each on its share of the cores; 0 is one a core, best for many images.
    `expected` is how many images it will describe, where that is known: for a few "auto" prefers the engine that
    starts sooner. With "auto" an engine that is missing, or that cannot express the network, is passed over with a
    warning; one that was asked for is a UserError. With `bf16` an engine that can computes in these short numbers.
    """
    require_engine(wanted, device)
    if wanted == "torch" or (wanted == "auto" and not on_cpu(device)):
        return _report(_torch(source, device, streams))
    cache = cache or EngineCache()
    by_speed: tuple[EngineName, ...] = ("openvino", "onnx")
    in_order = by_speed[::-1] if 0 < expected <= _FEW_IMAGES else by_speed
    names = [one for one in in_order if wanted in ("auto", one) and _is_installed(one)]
    try:
        graph = find_graph(source, kind, size, square=square, cache=cache)
    except CannotExport as error:
        if wanted != "auto":
            raise UserError(f"{error}. Leave --engine out, or choose torch.") from error
        logger.warning("%s: torch describes instead", error)
        names = []
    for name in names:
        try:
            return _report(start_engine(name, graph, head, streams, cache, bf16))
        except (
            Exception
        ) as error:  # each engine has errors of its own; any of them means that it does not work
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            reason = f"the engine {name} does not start ({first})"
            if wanted != "auto":
                raise UserError(f"{reason}: {_INSTALL[name]} again, or leave --engine out.") from error
            logger.warning("%s: another takes its place", reason)
    return _report(_torch(source, device, streams))


def start_engine(
    name: EngineName, graph: Graph, head: Head, streams: int, cache: EngineCache, bf16: bool
) -> Engine:
    """Open the engine of this name on a graph."""
    cores = usable_cores()
    streams = min(streams or cores, cores)
    threads = max(1, cores // streams)
    if name == "openvino":
        from insclr.engine.openvino_engine import OpenVinoEngine

        return OpenVinoEngine(graph, head, threads, streams, cache, bf16)
    from insclr.engine.onnx_engine import OnnxEngine

    return OnnxEngine(graph, head, threads)


def _torch(source: GraphSource, device: str, streams: int) -> Engine:
    from insclr.engine.torch_engine import TorchEngine
    from insclr.model.device import place

    network = source.network()
    place(network, device)
    return TorchEngine(network, streams)


def _is_installed(name: str) -> bool:
    return find_spec(_MODULE[name]) is not None


def _report(engine: Engine) -> Engine:
    _log_once(engine.about)
    return engine


@functools.cache
def _log_once(about: str) -> None:
    logger.info("photos are described by %s", about)

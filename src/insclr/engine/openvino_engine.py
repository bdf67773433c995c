"""The engine that runs OpenVINO, which compiles a graph for the processor and caches the result."""

import functools
from collections.abc import Sequence
from importlib import import_module
from queue import SimpleQueue
from typing import Any

import numpy as np

from insclr.engine.cache import EngineCache
from insclr.engine.choose import Graph
from insclr.engine.engine import EngineName, Features, GraphEngine, Head

openvino: Any = import_module("openvino")
# What its tensors need of numpy is set up at their first use, under a C++ lock that gives Python's lock away for a
# moment: two threads that read their first tensors at once would wait for each other for ever.
_ = openvino.Tensor(np.zeros(1, np.float32)).data


class OpenVinoEngine(GraphEngine):
    """An exported graph run by OpenVINO: `streams` calls at a time, each by `threads` threads."""

    name: EngineName = "openvino"

    def __init__(
        self,
        graph: Graph,
        head: Head,
        threads: int,
        streams: int,
        cache: EngineCache | None = None,
        bf16: bool = False,
    ) -> None:
        version = openvino.__version__.split("-", 1)[0]
        super().__init__(
            f"OpenVINO {version}{' in bf16' if bf16 else ''}", graph.outputs, graph.channels, head
        )
        options = {
            "NUM_STREAMS": str(streams),
            "INFERENCE_NUM_THREADS": str(threads * streams),
            # Where a processor has bf16, OpenVINO might take it unasked: what is shipped is to be torch's.
            "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
        }
        compiled = _compile(graph, options, cache, f"{threads}x{streams}{'-bf16' if bf16 else ''}")
        self._requests: SimpleQueue[Any] = SimpleQueue()  # as many as can run at a time
        for _ in range(streams):
            self._requests.put(compiled.create_infer_request())

    def _infer(self, pixels: Features, needed: Sequence[str]) -> list[Features]:
        request = self._requests.get()
        try:
            # Inputs are copied: OpenVINO would give a shared one back while it holds a lock, which needs
            # Python's lock, which another thread may hold that waits for OpenVINO's.
            found = request.infer({"images": pixels}, share_inputs=False)
            return [found[name] for name in needed]
        finally:
            self._requests.put(request)


@functools.cache
def _core() -> Any:
    """The one core of this process, for good.

    It gives the thread a stack for signals. Several would put stacks back that others have freed, and the next signal
    (Ctrl-C, the end of a child) would kill the process.
    """
    return openvino.Core()


def _compile(graph: Graph, options: dict[str, str], cache: EngineCache | None, shares: str) -> Any:
    core = _core()
    name, stamp = f"{graph.key}-{shares}.openvino", openvino.__version__
    kept = cache.read(name, stamp) if cache is not None else None
    if kept is not None:
        try:
            return core.import_model(kept.content, "CPU", options)
        except RuntimeError:
            pass  # of another processor or build: compiled anew
    made = core.compile_model(core.read_model(graph.content), "CPU", options)
    if cache is not None:
        exported = made.export_model()  # older versions give bytes
        cache.write(name, stamp, exported if isinstance(exported, bytes) else exported.getvalue(), {})
    return made

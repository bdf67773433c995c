"""The engine that runs ONNX Runtime."""

from collections.abc import Sequence
from typing import Any

import onnxruntime

from insclr.engine.choose import Graph
from insclr.engine.engine import EngineName, Features, GraphEngine, Head


class OnnxEngine(GraphEngine):
    """An exported graph run by ONNX Runtime, each call by `threads` threads."""

    name: EngineName = "onnx"

    def __init__(self, graph: Graph, head: Head, threads: int) -> None:
        about = f"ONNX Runtime {onnxruntime.__version__}"
        super().__init__(about, graph.outputs, graph.channels, head)
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        # Waiting threads would spin: a search for one photo took 45 ms more of processor time.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(
            graph.content, options, providers=["CPUExecutionProvider"]
        )

    def _infer(self, pixels: Features, needed: Sequence[str]) -> list[Features]:
        found: list[Features] = self._session.run(list(needed), {"images": pixels})
        return found

"""OpenVINO's own traps."""

import subprocess
import sys

_NO_NUMPY = """
import sys, types
from insclr.engine.openvino_engine import openvino
for name in ("numpy._core.multiarray", "numpy.core.multiarray"):
    sys.modules[name] = types.ModuleType(name)
print(openvino.Tensor(openvino.Type.f32, openvino.Shape([1, 3])).data.shape)
"""


def test_nothing_is_set_up_at_a_first_use_that_two_threads_could_share() -> None:
    """Setting up reads numpy's C interface: once the engine is imported, tensors must do without.

    Two threads that read the first tensors of a process at once could wait for each other for ever.
    """
    ended = subprocess.run([sys.executable, "-c", _NO_NUMPY], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "(1, 3)\n"), ended.stderr


_TWO_ENGINES = """
import gc, signal
from onnx import TensorProto, helper
from insclr.engine.choose import Graph
from insclr.engine.openvino_engine import OpenVinoEngine
from insclr.engine.engine import Head

shape = ["batch", 3, "height", "width"]
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("images", "pooled")]
graph = helper.make_graph([helper.make_node("Relu", ["images"], ["pooled"])], "g", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
first, second = (
    OpenVinoEngine(Graph("key", model.SerializeToString(), ("pooled",), 3), Head(), 1, 1) for _ in range(2)
)
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
del first
gc.collect()
del second
gc.collect()
signal.raise_signal(signal.SIGUSR1)
"""


def test_a_process_outlives_a_signal_after_its_engines_are_gone() -> None:
    """OpenVINO gives the thread a stack for signals and, with its last owner, takes it away again."""
    ended = subprocess.run([sys.executable, "-c", _TWO_ENGINES], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "handled\n"), ended.stderr

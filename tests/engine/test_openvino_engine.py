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

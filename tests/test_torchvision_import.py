"""torchvision beside any build of torch."""

import subprocess
import sys

_PROGRAM = """
import sys, types
{before}
from insclr.torchvision_import import import_timm, import_torchvision
assert import_torchvision() is sys.modules["torchvision"]
assert import_timm() is sys.modules["timm"]
print(sys.modules["torchvision"].transforms.RandomResizedCrop.__name__)
"""


def _run(before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(before=before)], capture_output=True, text=True
    )


def test_torchvision_and_timm_import_beside_any_torch_build() -> None:
    result = _run("")
    assert result.stdout.strip() == "RandomResizedCrop", result.stderr


def test_another_failure_of_the_import_is_not_hidden() -> None:
    # A torchvision that breaks for a reason of its own must say so.
    before = """
import importlib.abc, importlib.machinery
class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "torchvision" else None
    def exec_module(self, module):
        raise RuntimeError("the disk is on fire")
sys.meta_path.insert(0, Broken())
"""
    result = _run(before)
    assert result.returncode != 0
    assert "the disk is on fire" in result.stderr

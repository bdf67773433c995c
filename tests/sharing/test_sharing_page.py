"""The page on sharing: its snippets run, in order, but for those whose package is not installed."""

import importlib.util
import re
from pathlib import Path

import pytest

import insclr

_PAGE = Path(__file__).parents[2] / "docs" / "sharing.md"
_NEEDS = re.compile(r"# needs: (\w+)\n")


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)


def _is_there(block: str) -> bool:
    needed = _NEEDS.match(block)
    return needed is None or importlib.util.find_spec(needed[1]) is not None


def test_the_snippets_run(small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PHOTOS").symlink_to(small_collection)
    (tmp_path / "RUN").mkdir()
    insclr.whiten("pretrained:efficientnet_lite0", "PHOTOS", "RUN/model.safetensors", dim=16)
    names: dict[str, object] = {}
    for block in filter(_is_there, _blocks()):
        exec(compile(block, "docs/sharing.md", "exec"), names)
    assert len(names["vectors"]) == 48  # type: ignore[arg-type]
    assert len(names["vectors"][0]) == 16  # type: ignore[index]


def test_what_cannot_run_here_is_at_least_python() -> None:
    assert any(_NEEDS.match(block) for block in _blocks())
    for block in _blocks():
        compile(block, "docs/sharing.md", "exec")

"""The notebooks run from top to bottom on a drawn collection, and are stored without what they print."""

import json
from pathlib import Path

import pytest

_NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
_by_name = pytest.mark.parametrize("notebook", _NOTEBOOKS, ids=[one.stem for one in _NOTEBOOKS])


@_by_name
def test_it_is_stored_without_outputs(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@_by_name
def test_it_runs(notebook: Path, tmp_path: Path) -> None:
    reason = "pip install 'insclr[train,notebooks]' to run the notebooks"
    nbformat = pytest.importorskip("nbformat", reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    for package in ("ipykernel", "matplotlib"):
        pytest.importorskip(package, reason=reason)
    book = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(book, timeout=900, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3

"""What the tests of the page share."""

import sys
from pathlib import Path

import pytest

# The embedder and the pictures of the search tests serve the page's tests too.
sys.path.insert(0, str(Path(__file__).parents[1] / "retrieval"))
from served_collection import make_collection

from insclr.web.collection import Collection


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return make_collection(tmp_path)

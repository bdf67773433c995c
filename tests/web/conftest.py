"""What the tests of the page share."""

import sys
from pathlib import Path

import pytest

# The describer and the pictures of the search tests serve the page's tests too.
sys.path.insert(0, str(Path(__file__).parents[1] / "retrieval"))
from drawn_store import make_store

from insclr.web.served import ServedStore


@pytest.fixture
def collection(tmp_path: Path) -> ServedStore:
    return make_store(tmp_path)

"""Images as a Python caller gives them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from insclr.data.given import Picture, in_memory, is_single
from insclr.errors import UserError


def test_a_list_or_a_folder_is_not_a_single_image(tmp_path: Path) -> None:
    for name in ("a.png", "list.CSV", "list.txt", "list.parquet"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.png").mkdir()
    assert [path.name for path in sorted(tmp_path.iterdir()) if is_single(path)] == ["a.png"]


@pytest.mark.parametrize(
    "empty", [np.zeros((0, 0, 3), np.uint8), np.zeros((4, 0, 3), np.uint8), Image.new("RGB", (0, 3))]
)
def test_an_empty_image_is_refused(empty: Picture) -> None:
    with pytest.raises(UserError, match="is empty"):
        in_memory(empty)

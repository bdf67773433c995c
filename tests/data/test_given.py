"""Images as a Python caller gives them."""

from pathlib import Path

from insclr.data.given import is_single


def test_a_list_or_a_folder_is_not_a_single_image(tmp_path: Path) -> None:
    for name in ("a.png", "list.CSV", "list.txt", "list.parquet"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.png").mkdir()
    assert [path.name for path in sorted(tmp_path.iterdir()) if is_single(path)] == ["a.png"]

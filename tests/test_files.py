from pathlib import Path

import pytest

from insclr.files import whole_file, whole_folder


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "result.txt"
    with whole_file(target) as scratch:
        scratch.write_text("all of it")
        assert not target.exists()
    assert target.read_text() == "all of it"


def test_a_failed_write_leaves_the_old_file_and_no_scratch(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    target.write_text("old")

    def fail() -> None:
        with whole_file(target) as scratch:
            scratch.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_replaces_an_older_one_whole(tmp_path: Path) -> None:
    target = tmp_path / "sheets"
    for text in ("first", "second"):
        with whole_folder(target) as scratch:
            (scratch / "page").write_text(text)
    assert (target / "page").read_text() == "second"
    assert list(tmp_path.iterdir()) == [target]


def test_files_are_readable_for_others_as_usual(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    with whole_file(tmp_path / "ours") as scratch:
        scratch.touch(mode=0o600)
    assert (tmp_path / "ours").stat().st_mode == plain.stat().st_mode

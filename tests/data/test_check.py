"""What `insclr check` tells about a folder, one line for every kind of bad file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from helpers.made_files import photo
from insclr.data.check import SideStats, check_images, usual_side
from insclr.data.images import list_images


def test_one_line_for_every_bad_case(tmp_path: Path, bad_files: dict[str, str]) -> None:
    for k in range(2):
        photo(40, 30, seed=k).save(tmp_path / "bad" / f"good{k}.jpg")
    (tmp_path / "bad" / "folder.jpg").mkdir()
    names = sorted([p.name for p in (tmp_path / "bad").iterdir()] + ["never-was.jpg"])
    (tmp_path / "list.txt").write_text("".join(f"bad/{name}\n" for name in names))
    report = check_images(list_images(tmp_path / "list.txt"), workers=2)
    expected = bad_files | {"folder.jpg": "a folder", "never-was.jpg": "file not found"}
    assert (report.total, report.usable) == (len(expected) + 2, 2)
    assert [path for path, _ in report.unreadable] == [f"bad/{name}" for name in sorted(expected)]
    lines = report.lines()
    for name, reason in expected.items():
        assert sum(line.startswith(f"unreadable: bad/{name}: {reason}") for line in lines) == 1
    assert lines[0] == f"{len(expected) + 2} images: 2 usable, {len(expected)} unreadable"


def test_a_folder_of_nothing_but_bad_files_is_listed_and_checked(
    tmp_path: Path, bad_files: dict[str, str]
) -> None:
    report = check_images(list_images(tmp_path / "bad"), workers=2)
    assert {path for path, _ in report.unreadable} == set(bad_files)


def test_a_name_with_a_line_end_stays_on_its_line(tmp_path: Path) -> None:
    name = "a\nunreadable: photo.jpg: stolen.jpg"
    (tmp_path / name).write_bytes(b"no image")
    photo(8, 8).save(tmp_path / "photo.jpg")
    lines = check_images(list_images(tmp_path), workers=1).lines()
    assert [line for line in lines if line.startswith("unreadable")] == [
        r"unreadable: a\nunreadable: photo.jpg: stolen.jpg: not an image (or of an unknown format)"
    ]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_sizes_and_formats(tmp_path: Path, workers: int) -> None:
    photo(100, 40).save(tmp_path / "a.jpg")
    photo(30, 80).save(tmp_path / "b.jpg")
    photo(300, 200).save(tmp_path / "c.png")
    report = check_images(list_images(tmp_path), workers)
    assert report.formats == {"JPEG": 2, "PNG": 1}
    assert report.sides == SideStats(80, 100, 300)
    assert report.unreadable == ()
    assert "formats: 2 JPEG, 1 PNG" in report.lines()
    assert "longest side: 80 to 300 px, median 100" in report.lines()


def test_exact_duplicates_are_grouped(photos: Callable[..., Path]) -> None:
    folder = photos(3)
    (folder / "sub").mkdir()
    shutil.copy(folder / "photo2.jpg", folder / "sub" / "copy.jpg")
    shutil.copy(folder / "photo2.jpg", folder / "x.jpg")
    # Equal in length only.
    content = bytearray((folder / "photo3.jpg").read_bytes())
    content[-3] ^= 1
    (folder / "y.jpg").write_bytes(content)
    report = check_images(list_images(folder), workers=2)
    assert report.duplicates == (("photo2.jpg", "sub/copy.jpg", "x.jpg"),)
    assert report.surplus == 2
    assert "exact duplicates: 2 in 1 groups" in report.lines()
    assert "duplicates: photo2.jpg = sub/copy.jpg = x.jpg" in report.lines()


def test_nothing_usable_is_a_report_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    report = check_images(list_images(tmp_path), workers=1)
    assert (report.usable, report.sides) == (0, None)
    assert report.lines()[-1] == "unreadable: a.jpg: empty file (0 bytes)"


def test_no_image_is_lost_between_threads(photos: Callable[..., Path]) -> None:
    report = check_images(list_images(photos(8)), workers=2)
    assert report.formats == {"JPEG": 8}


def test_the_usual_side_is_the_longest_of_the_usual_photo(tmp_path: Path) -> None:
    for number, size in enumerate([(400, 100), (150, 200), (50, 50)]):
        Image.new("RGB", size).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    assert usual_side(list_images(tmp_path)) == 200


def test_nothing_readable_has_no_usual_side(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    assert usual_side(list_images(tmp_path)) == 0

"""Listing images: folders, text lists and tables, in natural order."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from insclr.data.images import ImageList, list_images, require_usable
from insclr.errors import UserError


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def refusal(source: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        list_images(source)
    return str(caught.value)


def test_folder_is_listed_recursively_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "img10.jpg", "img2.jpg", "IMG1.JPG", "b/1.png", "a10/1.png", "a9/1.png", "a9/001.png")
    images = list_images(tmp_path)
    assert images.paths == (
        "a9/001.png",
        "a9/1.png",
        "a10/1.png",
        "b/1.png",
        "IMG1.JPG",
        "img2.jpg",
        "img10.jpg",
    )
    assert images.file(3) == tmp_path / "b" / "1.png"


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "ppm", "JPG", "Tiff"])
def test_common_suffixes_count_as_images_in_any_case(tmp_path: Path, suffix: str) -> None:
    touch(tmp_path, f"a.{suffix}", "notes.txt", "labels.csv", "a.jpg.part")
    assert list_images(str(tmp_path)).paths == (f"a.{suffix}",)


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", ".b.jpg", ".thumbnails/c.jpg", "d/.e/f.jpg")
    assert list_images(tmp_path).paths == ("a.jpg",)


def test_a_folder_called_like_an_image_is_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "album.jpg/a.jpg")
    assert list_images(tmp_path).paths == ("album.jpg/a.jpg",)


def test_links_are_followed_once_and_loops_end(tmp_path: Path) -> None:
    outside = touch(tmp_path / "outside", "o.jpg")
    root = touch(tmp_path / "root", "sub/a.jpg", "z/b.jpg")
    (root / "sub" / "up").symlink_to(root)
    (root / "a_link_to_z").symlink_to(root / "z")
    (root / "linked").symlink_to(outside)
    # z is listed under its own name although a link to it sorts first.
    assert list_images(root).paths == ("linked/o.jpg", "sub/a.jpg", "z/b.jpg")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file: run as another user")
def test_a_forbidden_folder_is_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "closed/b.jpg")
    (tmp_path / "closed").chmod(0)
    try:
        assert list_images(tmp_path).paths == ("a.jpg",)
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_missing_source_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere")


def test_folder_without_images_tells_what_it_found(tmp_path: Path) -> None:
    assert "no files at all" in refusal(tmp_path)
    touch(tmp_path, "a.psd", "b.psd", "c.doc")
    message = refusal(tmp_path)
    assert "2 .psd" in message
    assert ".jpeg" in message


def test_other_file_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    assert "neither a folder nor a list" in refusal(tmp_path / "a.jpg")


def test_text_list_is_relative_to_its_folder(tmp_path: Path) -> None:
    touch(tmp_path, "lists/x/b.jpg", "lists/a.jpg", "c#1.jpg")
    source = tmp_path / "lists" / "some.txt"
    source.write_text("# my photos\n\n  x/b.jpg  \n./a.jpg\n../c#1.jpg\n", encoding="utf-8-sig")
    images = list_images(source)
    assert images.paths == ("x/b.jpg", "a.jpg", str(tmp_path / "c#1.jpg"))
    assert [images.file(i).exists() for i in range(3)] == [True] * 3
    assert images.columns == {}


def test_text_list_takes_absolute_paths(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/a.jpg\n")
    assert list_images(tmp_path / "list.txt").paths == ("a.jpg",)


def test_a_path_listed_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "list.txt").write_text("# photos\na.jpg\nb.jpg\n./a.jpg\n")
    assert "line 4: ./a.jpg is listed already in line 2" in refusal(tmp_path / "list.txt")
    (tmp_path / "list.csv").write_text("path\na.jpg\na.jpg\n")
    assert "line 3: a.jpg is listed already in line 2" in refusal(tmp_path / "list.csv")


def test_a_missing_file_in_a_list_is_left_to_decoding_but_not_a_wholly_wrong_list(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    (tmp_path / "list.txt").write_text("gone.jpg\na.jpg\n")
    assert len(list_images(tmp_path / "list.txt")) == 2
    (tmp_path / "list.txt").write_text("photos/x.jpg\nphotos/y.jpg\n")
    assert "photos/x.jpg does not exist" in refusal(tmp_path / "list.txt")


def test_empty_and_undecodable_lists_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# nothing\n\n")
    assert "lists no images" in refusal(tmp_path / "list.txt")
    (tmp_path / "list.txt").write_bytes(b"caf\xe9.jpg\n")
    assert "not UTF-8" in refusal(tmp_path / "list.txt")


def test_csv_gives_paths_and_columns(tmp_path: Path) -> None:
    touch(tmp_path, "a, b.jpg", "c.jpg")
    (tmp_path / "list.csv").write_text('instance,path,note\r\n7,"a, b.jpg","two\nlines"\r\n\r\n8,c.jpg,\r\n')
    images = list_images(tmp_path / "list.csv")
    assert images.paths == ("a, b.jpg", "c.jpg")
    assert images.columns == {"instance": ("7", "8"), "note": ("two\nlines", "")}


@pytest.mark.parametrize("separator", [";", "\t"])
def test_csv_with_the_separator_of_another_spreadsheet_is_read(tmp_path: Path, separator: str) -> None:
    touch(tmp_path, "a, b.jpg", "c.jpg")
    rows = [["price", "path", "size, mm"], ["1,50", "a, b.jpg", "7"], ["2", "c.jpg", "8"]]
    (tmp_path / "list.csv").write_text("\ufeff" + "\n".join(separator.join(row) for row in rows))
    images = list_images(tmp_path / "list.csv")
    assert images.paths == ("a, b.jpg", "c.jpg")
    assert images.columns == {"price": ("1,50", "2"), "size, mm": ("7", "8")}


def test_signs_that_some_programs_take_for_line_ends_are_text(tmp_path: Path) -> None:
    caption = "one\u2028two\u0085three\x0cfour"
    touch(tmp_path, "a.jpg", "b\u2028.jpg")
    (tmp_path / "list.csv").write_text(f'path,caption\na.jpg,{caption}\nb\u2028.jpg,"{caption}\r\nfive"\n')
    images = list_images(tmp_path / "list.csv")
    assert images.paths == ("a.jpg", "b\u2028.jpg")
    assert images.columns["caption"][0] == caption
    (tmp_path / "list.txt").write_text("a.jpg\r\nb\u2028.jpg\n")
    assert list_images(tmp_path / "list.txt").paths == ("a.jpg", "b\u2028.jpg")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no column"),
        ("file,label\na.jpg,1\n", 'no column "path" (it has: file, label)'),
        (
            "path;label\na.jpg;1;2\n",
            "line 2: 3 cells, but the header has 2 columns. Quote a cell that holds a semicolon",
        ),
        ("file;label\na.jpg;1\n", "commas, semicolons or tabs"),
        ("path,path\na.jpg,b.jpg\n", "a column is named twice"),
        ("path,label\na.jpg,1\nb.jpg\n", "line 3: 1 cells"),
        ("path,label\na.jpg,1\nb.jpg,2,3\n", "line 3: 3 cells"),
        ('path,label\na.jpg,"1\n2"\n,2\n', "line 4: the path is empty"),
        ('path,label\na.jpg,1\nb.jpg,"2\nc.jpg,3\n', "line 3: malformed CSV"),
        ('path,label\na.jpg,"1"2\n', "line 2: malformed CSV"),
        ("path,label\n", "lists no images"),
    ],
)
def test_malformed_csv_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    assert complaint in refusal(tmp_path / "list.csv")


def test_parquet_gives_paths_and_columns(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.jpg")
    pq.write_table(pa.table({"path": ["b.jpg", "a.jpg"], "instance": [3, None]}), tmp_path / "list.parquet")
    images = list_images(tmp_path / "list.parquet")
    assert images.paths == ("b.jpg", "a.jpg")
    assert images.columns == {"instance": ("3", "")}


def test_malformed_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.parquet").write_bytes(b"not parquet")
    assert "not a readable Parquet file" in refusal(tmp_path / "list.parquet")
    pq.write_table(pa.table({"file": ["b.jpg"]}), tmp_path / "list.parquet")
    assert "no column" in refusal(tmp_path / "list.parquet")
    pq.write_table(pa.table({"path": ["b.jpg", None]}), tmp_path / "list.parquet")
    assert "row 2: the path is empty" in refusal(tmp_path / "list.parquet")


def test_subset_keeps_order_and_columns() -> None:
    images = ImageList(Path("/r"), ("a", "b", "c"), {"label": ("1", "2", "3")})
    part = images.subset([2, 0])
    assert part.paths == ("c", "a")
    assert part.columns == {"label": ("3", "1")}
    assert part.file(0) == Path("/r/c")


def test_fewer_than_two_usable_images_is_an_error() -> None:
    require_usable(2, "photos")
    with pytest.raises(UserError, match=r"photos has 1 usable image; at least 2.*insclr check photos"):
        require_usable(1, "photos")


def test_a_list_that_is_a_pipe_or_names_impossible_paths_is_a_user_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(UserError, match="not a regular file"):
        list_images(tmp_path / "pipe.txt")
    (tmp_path / "list.txt").write_text("x" * 5000 + "\n" + "y" * 300 + ".jpg\n")
    with pytest.raises(UserError, match="does not exist"):
        list_images(tmp_path / "list.txt")
    with pytest.raises(UserError, match="does not exist"):
        list_images(tmp_path / ("z" * 300))


def test_a_parquet_list_with_damaged_text_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "photo-one.jpg")
    pq.write_table(pa.table({"path": ["photo-one.jpg"]}), tmp_path / "l.parquet", compression="none")
    content = (tmp_path / "l.parquet").read_bytes().replace(b"photo-one.jpg", b"photo-\x9ene.jpg")
    (tmp_path / "l.parquet").write_bytes(content)
    assert "not a readable Parquet file" in refusal(tmp_path / "l.parquet")

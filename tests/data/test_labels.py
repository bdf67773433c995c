"""The CSV of labels: columns, roles, boxes, and what is wrong with it, told by line."""

import pytest

from insclr.data.labels import read_labels
from insclr.errors import UserError


def write(folder, text, encoding="utf-8"):
    file = folder / "labels.csv"
    file.write_bytes(text.encode(encoding))
    return file


def test_path_and_instance_in_any_column_order(tmp_path):
    labels = read_labels(write(tmp_path, "note,instance,path\nx,cup,a/1.jpg\n\ny,cup,a/2.jpg\nz,tin,b.jpg\n"))
    assert labels.paths == ("a/1.jpg", "a/2.jpg", "b.jpg")
    assert labels.instance_ids().tolist() == [0, 0, 1]
    assert labels.roles is None
    assert labels.boxes is None
    assert labels.role_ids("query").tolist() == labels.role_ids("index").tolist() == [0, 1, 2]
    assert labels.images.file(2) == tmp_path / "b.jpg"


def test_a_byte_order_mark_and_spaces_are_no_part_of_the_names(tmp_path):
    labels = read_labels(write(tmp_path, "path, instance\r\n a.jpg , cup \r\nb.jpg,cup\r\n", "utf-8-sig"))
    assert labels.paths == ("a.jpg", "b.jpg")
    assert labels.instances == ("cup", "cup")


def test_roles_split_queries_from_the_index(tmp_path):
    labels = read_labels(write(tmp_path, "path,instance,role\na,x,query\nb,x,index\nc,y,index\n"))
    assert labels.role_ids("query").tolist() == [0]
    assert labels.role_ids("index").tolist() == [1, 2]


def test_boxes_may_be_given_for_some_images(tmp_path):
    labels = read_labels(write(tmp_path, "path,instance,x1,y1,x2,y2\na,x,1,2,3.5,4\nb,x,,,,\n"))
    assert labels.boxes == ((1.0, 2.0, 3.5, 4.0), None)


def test_semicolons_and_decimal_commas_of_a_spreadsheet(tmp_path):
    labels = read_labels(write(tmp_path, "path;instance;x1;y1;x2;y2\r\na.jpg;cup, blue;1;2;3,5;4\r\n"))
    assert (labels.paths, labels.instances) == (("a.jpg",), ("cup, blue",))
    assert labels.boxes == ((1.0, 2.0, 3.5, 4.0),)


def test_another_root_for_the_paths(tmp_path):
    labels = read_labels(write(tmp_path, "path,instance\na.jpg,x\nb.jpg,x\n"), root=tmp_path / "photos")
    assert labels.images.file(0) == tmp_path / "photos" / "a.jpg"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column"),
        ("a.jpg,cup\nb.jpg,cup\n", 'no column "path"'),
        ("path,label\na.jpg,cup\n", 'no column "instance"'),
        ("path,instance,path\na,b,c\n", "a column is named twice"),
        ("path,instance\na.jpg,cup\nb.jpg\n", "line 3: 1 cells"),
        ("path,instance\na.jpg,cup,extra\n", "line 2: 3 cells"),
        ("path,instance\na.jpg,\n", "line 2: the instance is empty"),
        ("path,instance\n,cup\n", "line 2: the path is empty"),
        ("path,instance\na.jpg,cup\nb.jpg,cup\n./a.jpg,tin\n", "line 4: a.jpg is already on line 2"),
        ('path,instance\na.jpg,"cup\n', "malformed CSV"),
        ("path,instance\n", "no images are listed"),
        ("path,instance,role\na,x,query\nb,x,database\n", 'line 3: the role is "database"'),
        ("path,instance,role\na,x,index\nb,x,index\n", 'no line has the role "query"'),
        ("path,instance,role\na,x,query\nb,x,query\n", 'no line has the role "index"'),
        ("path,instance,x1,y1\na,x,1,2\n", "line 1: boxes need all four columns"),
        ("path,instance,x1,y1,x2,y2\na,x,1,2,left,4\n", "line 2: the box 1,2,left,4 is not four numbers"),
        ("path,instance,x1,y1,x2,y2\na,x,5,2,3,4\n", "line 2: the box 5,2,3,4 is empty"),
        ("path,instance,x1,y1,x2,y2\na,x,1,2,inf,4\n", "line 2: the box 1,2,inf,4 has no finite size"),
    ],
)
def test_bad_files_are_refused_with_the_line(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        read_labels(write(tmp_path, text))
    assert message in str(error.value)
    assert "labels.csv" in str(error.value)


def test_a_missing_file_and_one_that_is_not_text(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_labels(tmp_path / "none.csv")
    with pytest.raises(UserError, match="UTF-8"):
        read_labels(write(tmp_path, "path,instance\ncafé.jpg,x\n", "latin-1"))

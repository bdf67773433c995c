"""Lists of training images from the files that GLDv2 and INSTRE publish."""

from pathlib import Path

import numpy as np
import pytest
import scipy.io
from typer.testing import CliRunner

from insclr.cli import app, evaluation  # noqa: F401  (registers the command)
from insclr.data.images import list_images
from insclr.data.labels import match_instances, read_labels

# Landmarks of 3, 2 and 1 images; ids begin with the letters of their folders.
_IMAGES = {"7": ["aaa1", "abc2", "fff3"], "8": ["b0a4", "b0b5"], "9": ["ccc6"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "train"
    for image in (one for images in _IMAGES.values() for one in images):
        file = folder / image[0] / image[1] / image[2] / f"{image}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return folder


def _call(*arguments: object) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["list", *map(str, arguments)])
    return ended.exit_code, ended.output


def _written(file: Path) -> dict[str, str]:
    labels = read_labels(file)
    return {Path(path).name: instance for path, instance in zip(labels.paths, labels.instances, strict=True)}


@pytest.mark.parametrize("clean", [True, False])
def test_both_files_of_gldv2_give_the_images_of_large_landmarks(
    root: Path, tmp_path: Path, clean: bool
) -> None:
    file, out = tmp_path / "published.csv", tmp_path / "list.csv"
    if clean:
        lines = ["landmark_id,images", *(f"{name},{' '.join(images)}" for name, images in _IMAGES.items())]
    else:
        lines = ["id,url,landmark_id"]
        lines += [f'{one},"http://x/a,b.jpg",{name}' for name, images in _IMAGES.items() for one in images]
    file.write_text("\n".join(lines) + "\n")
    status, shown = _call("gldv2", file, "--root", root, "--at-least", 2, "--out", out)
    assert status == 0, shown
    assert "5 images of 2 instances" in shown
    assert _written(out) == {f"{one}.jpg": name for name in "78" for one in _IMAGES[name]}
    images = list_images(out)
    assert all(images.file(i).is_file() for i in range(5))
    assert match_instances(read_labels(out), images).tolist() == [0, 0, 0, 1, 1]


def test_the_list_of_instre_has_no_queries(tmp_path: Path) -> None:
    names = [f"INSTRE-S1/01a_book/{n:03}.jpg" for n in range(4)] + [
        f"INSTRE-M/01/{n:03}.jpg" for n in range(2)
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    queries = names[1:3]
    database = [name for name in names if name not in queries]
    truth = np.zeros((1, 2), dtype=[("ok", object), ("bbx", object)])
    truth[0, :] = [(np.array([[1, 2]]), np.array([[0, 0, 4, 4]]))] * 2
    content = {"qimlist": np.array([queries], dtype=object), "imlist": np.array([database], dtype=object)}
    scipy.io.savemat(tmp_path / "gnd_instre.mat", {**content, "gnd": truth})
    out = tmp_path / "list.csv"
    status, shown = _call("instre", tmp_path / "gnd_instre.mat", "--root", tmp_path, "--out", out)
    assert status == 0, shown
    labels = read_labels(out)
    assert [Path(path).relative_to(tmp_path).as_posix() for path in labels.paths] == database
    assert set(labels.instances) == {"INSTRE-S1/01a_book", "INSTRE-M/01"}


@pytest.mark.parametrize(
    ("name", "content", "folder", "complaint"),
    [
        ("coco", "landmark_id,images\n7,aaa1\n", "train", 'no protocol "coco"'),
        ("gldv2", None, "train", "There is no file"),
        ("gldv2", "landmark_id,images\n7,aaa1\n", "nowhere", "is no folder"),
        ("gldv2", "landmark_id,images\n7,zzz9\n", "train", "is --root right?"),
        ("gldv2", "landmark_id,images\n7,aaa1 x\n", "train", "line 2: 'x' is not the id"),
        ("gldv2", "picture\nx\n", "train", 'no column "id"'),
        ("instre", "picture\nx\n", "train", "not the INSTRE ground truth"),
    ],
)
@pytest.mark.usefixtures("root")
def test_wrong_files_are_refused_in_a_sentence(
    tmp_path: Path, name: str, content: str | None, folder: str, complaint: str
) -> None:
    file = tmp_path / "published.csv"
    if content is not None:
        file.write_text(content)
    ended = CliRunner().invoke(
        app, ["list", name, str(file), "--root", str(tmp_path / folder), "--out", str(tmp_path / "list.csv")]
    )
    assert ended.exit_code != 0
    assert complaint in f"{ended.output} {ended.exception}"
    assert not (tmp_path / "list.csv").exists()

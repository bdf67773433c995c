"""Screens that are worth asking, and what a run learns from the answers."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.feedback.asking import Asking, feedback_groups
from insclr.feedback.entries import answer
from insclr.feedback.links import KnownImages, Link
from insclr.feedback.questions import Questions
from insclr.retrieval.index import index_images
from insclr.store import open_store


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    draw_things(tmp_path / "photos", 5, 6)
    index_images(HistogramDescriber(), list_images(tmp_path / "photos"), tmp_path / "store")
    return tmp_path / "photos"


def test_what_was_answered_reaches_the_images_of_a_list_by_their_content(
    photos: Path, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "store")
    rows = store.rows_by_path()
    image = {path: row.image.hash for path, row in rows.items()}
    with pytest.raises(UserError, match="There are no names or answers"):
        feedback_groups(str(tmp_path / "store"), list_images(photos))
    store.append([answer(image["0/0.png"], [image["3/1.png"]], [image["1/0.png"]])])
    store.close()
    (photos / "3/1.png").rename(photos / "3/renamed.png")
    images = list_images(photos)
    taught = feedback_groups(str(tmp_path / "store"), images)
    place = {path: i for i, path in enumerate(images.paths)}
    groups = taught.groups.tolist()
    assert groups[place["0/0.png"]] == groups[place["3/renamed.png"]]
    assert groups[place["0/0.png"]] != groups[place["1/0.png"]]
    apart = {frozenset(pair) for pair in taught.apart.tolist()}
    assert frozenset((groups[place["0/0.png"]], groups[place["1/0.png"]])) in apart
    assert bool(taught.has_feedback[place["1/0.png"]])
    assert not bool(taught.has_feedback.all())


def test_what_was_answered_reaches_the_frames_of_a_video(photos: Path, tmp_path: Path) -> None:
    from helpers.made_formats import write_video

    write_video(photos / "clip.mp4", [Image.open(photos / f"{thing}/0.png") for thing in (0, 1)])
    index_images(HistogramDescriber(), list_images(photos), tmp_path / "store")
    store = open_store(tmp_path / "store")
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    frame = next(path for path in image if path.startswith("clip.mp4#"))
    store.append([answer(image["0/0.png"], [image[frame]], [])])
    store.close()
    images = list_images(photos)
    taught = feedback_groups(str(tmp_path / "store"), images)
    place, other = images.paths.index(frame), images.paths.index("0/0.png")
    assert bool(taught.has_feedback[place])
    assert int(taught.groups[place]) == int(taught.groups[other])


@pytest.mark.usefixtures("photos")
def test_screens_come_from_different_groups_and_end_when_all_is_known(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    asking = Asking(store)
    path = {row.id: row.image.path for row in store.rows_by_path().values()}
    thing = [path[int(one)].split("/")[0] for one in asking.ids]
    asked: set[frozenset[int]] = set()
    for _ in range(60):
        screen = asking.screen()
        if screen is None:
            break
        shown = [screen.query, *screen.candidates]
        assert len(set(asking.questions.group[shown])) == len(shown)
        pairs = {frozenset((screen.query, one)) for one in screen.candidates}
        assert not pairs & asked  # nothing is asked twice
        asked |= pairs
        asking.add_answers(
            [
                Link(asking.hashes[screen.query], asking.hashes[one], thing[one] == thing[screen.query])
                for one in screen.candidates
            ]
        )
    else:
        pytest.fail("it goes on asking")
    store.close()


def test_the_answer_that_changes_most_is_asked_for_first() -> None:
    """Two large groups that may be one, and two small ones that may be one just as well: the large ones first."""
    generator = np.random.default_rng(0)

    def group(centre: np.ndarray, count: int) -> np.ndarray:
        return centre + 0.1 * generator.standard_normal((count, 16))

    centres = np.zeros((4, 16))
    for at, (axis, side) in enumerate([(0, 1.0), (0, -1.0), (3, 1.0), (3, -1.0)]):
        centres[at, axis] = 1.0
        centres[at, axis + 1] = side * 0.55
    rows = np.concatenate([group(centres[at], count) for at, count in enumerate((30, 30, 4, 4))])
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    similar = rows @ rows.T
    np.fill_diagonal(similar, -1)
    near = np.argsort(-similar, axis=1)[:, :8]
    questions = Questions(rows, near, KnownImages(np.arange(68)))
    screen = questions.screen()
    assert screen is not None
    assert screen.query < 60
    assert screen.candidates[0] < 60

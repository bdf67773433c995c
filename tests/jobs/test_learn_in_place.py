"""Learning inside a store: its models side by side, feedback once, and the way back."""

from pathlib import Path

import numpy as np
import pytest

from helpers.small_training import LEARNED as SMALL
from insclr.data.images import list_images
from insclr.describe.describer import Describer
from insclr.errors import UserError
from insclr.feedback.entries import name_thing
from insclr.feedback.feedback import read_feedback
from insclr.jobs.learn import learn, models
from insclr.model.model_file import resolve_model
from insclr.retrieval.index import index_images
from insclr.retrieval.local_database import LocalFeatureDatabase
from insclr.retrieval.query import describer_of
from insclr.store import Store, open_store
from insclr.web.server import open_served

NAME = "pretrained:efficientnet_lite0"


@pytest.fixture
def home(small_collection: Path, tmp_path: Path) -> Path:
    images = list_images(small_collection).subset(range(12))
    index_images(Describer(NAME, resolve_model(NAME), 0), images, tmp_path / "store", local="on")
    with_name(open_store(tmp_path / "store"), "mug", 0)
    return tmp_path / "store"


def with_name(store: Store, name: str, first: int) -> None:
    hashes = [row.image.hash for row in store.rows_by_path().values()]
    store.append(name_thing(f"thing-{first:02}", name, hashes[first : first + 2]))


def names(store: Store) -> set[str]:
    return {thing.name for thing in read_feedback(store).things.values()}


def test_a_name_given_after_learning_is_there_when_the_store_is_opened_again(home: Path) -> None:
    old = open_store(home)
    before = old.descriptors(old.ids())
    done = learn(home, None, "fast", SMALL, "cpu")
    assert done.store == home
    learned = open_store(home)
    assert learned.info.fingerprint != old.info.fingerprint
    assert learned.ids().tolist() == old.ids().tolist()  # open pages go on naming the same photos
    with_name(learned, "vase", 4)
    # The one that is still open on the old model reads the same journal, and the old rows.
    assert names(open_store(home)) == names(old) == {"mug", "vase"}
    np.testing.assert_array_equal(old.descriptors(old.ids()), before)
    assert len(LocalFeatureDatabase(learned.parts).hashes()) == 12
    assert describer_of(learned.info).fingerprint == learned.info.fingerprint
    assert [one.title for one in open_served([home])] == ["After", "Before"]

    # Back, and learned again from both names.
    assert models(home, use=1).before == 2
    assert open_store(home).info.fingerprint == old.info.fingerprint
    assert names(open_store(home)) == {"mug", "vase"}
    models(home, use=2)
    learn(home, None, "fast", SMALL, "cpu")
    now = models(home)
    assert (now.current, now.before) == (3, 2)
    with pytest.raises(UserError, match="has no model 7"):
        models(home, use=7)
    assert models(home) == now


def test_new_photos_go_to_the_current_model(home: Path, small_collection: Path) -> None:
    learn(home, None, "fast", SMALL, "cpu")
    run = open_store(home).info.model
    index_images(Describer(run, resolve_model(run), 0), list_images(small_collection).subset(range(20)), home)
    assert open_store(home).count() == 20
    assert open_store(home / "models" / "1").count() == 12


def test_a_store_with_a_learned_model_can_be_moved(home: Path) -> None:
    learn(home, None, "fast", SMALL, "cpu")
    there = home.rename(home.with_name("elsewhere"))
    store = open_store(there)
    assert Path(store.info.model).is_relative_to(there)
    assert describer_of(store.info).fingerprint == store.info.fingerprint


def test_a_killed_learning_leaves_the_old_model_and_goes_on_with_the_answers_of_now(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    old = open_store(home)
    with (
        monkeypatch.context() as patch
    ):  # the rows of the new model are there, the store does not use them yet
        patch.setattr("insclr.jobs.learn.write_models", killed)
        with pytest.raises(KilledError):
            learn(home, None, "fast", SMALL, "cpu")
    assert open_store(home).info.fingerprint == old.info.fingerprint
    run = home / "models" / "2" / "run" / "model.safetensors"
    made = run.stat().st_mtime_ns
    learn(home, None, "fast", SMALL, "cpu")
    assert run.stat().st_mtime_ns == made  # nothing was trained twice
    assert open_store(home).info.fingerprint != old.info.fingerprint


def test_what_a_killed_learning_left_is_not_used_once_there_are_further_answers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr("insclr.jobs.learn.index_images", killed)
        with pytest.raises(OSError):  # noqa: PT011
            learn(home, None, "fast", SMALL, "cpu")
    run = home / "models" / "2" / "run"
    made = (run / "feedback.safetensors").stat().st_mtime_ns
    with_name(open_store(home), "vase", 4)
    learn(home, None, "fast", SMALL, "cpu")
    assert (run / "feedback.safetensors").stat().st_mtime_ns > made

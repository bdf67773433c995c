"""Learning from answers: a new model and store, with all that was said, again and again."""

from pathlib import Path

import pytest

from helpers.small_training import LEARNED as SMALL
from insclr.data.images import list_images
from insclr.describe.describer import Describer
from insclr.engine.opened import open_in_memory
from insclr.errors import UserError
from insclr.feedback.asking import Asking
from insclr.feedback.entries import answer, name_thing
from insclr.feedback.feedback import read_feedback
from insclr.feedback.names import build_gallery
from insclr.jobs.learn import index_learned, learn
from insclr.model.model_file import resolve_model
from insclr.retrieval.index import index_images
from insclr.retrieval.local_database import LocalFeatureDatabase
from insclr.store import open_store


def test_what_was_said_goes_along_and_the_next_time_no_photo_is_read_for_features(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "pretrained:efficientnet_lite0"
    images = list_images(small_collection).subset(range(23, -1, -1))
    index_images(Describer(name, resolve_model(name), 0), images, tmp_path / "store")
    store = open_store(tmp_path / "store")
    ids = {path: row.id for path, row in store.rows_by_path().items()}
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    paths = sorted(image)
    with pytest.raises(UserError, match="There are no names or answers"):
        learn(str(tmp_path / "store"), tmp_path / "nothing", "fast", SMALL, "cpu")
    assert not (tmp_path / "nothing").exists()  # nothing blocks the next try
    store.append([answer(image[paths[0]], [image[paths[1]]], [image[paths[9]]])])
    store.append(name_thing("thing-00", "mug", [image[paths[0]]]))
    done = learn(str(tmp_path / "store"), tmp_path / "first", "fast", SMALL, "cpu")
    learned = open_store(done.store)
    assert learned.info.fingerprint != store.info.fingerprint
    # Pages that are open go on naming the same photos, also where paths sort otherwise.
    assert {path: row.id for path, row in learned.rows_by_path().items()} == ids
    assert read_feedback(learned).name_of(image[paths[0]]) == "mug"
    assert len(read_feedback(learned).links) == 2
    # Learning from the learned store finds every feature where the first time left it.
    from insclr.describe import collection_features, pipeline

    def no_more(*_: object, **__: object) -> None:
        raise AssertionError("features were computed again")

    monkeypatch.setattr(pipeline, "decode", no_more)
    monkeypatch.setattr(collection_features, "load_views", no_more)
    again = learn(str(done.store), tmp_path / "second", "fast", SMALL, "cpu")
    assert again.report.added == 24
    with pytest.raises(UserError, match="is not empty"):
        learn(str(done.store), tmp_path / "second", "fast", SMALL, "cpu")


def test_learning_that_was_killed_goes_on_with_the_same_command(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, uri = "pretrained:efficientnet_lite0", str(tmp_path / "store")
    images = list_images(small_collection).subset(range(12))
    index_images(Describer(name, resolve_model(name), 0), images, uri)
    store = open_store(uri)
    rows = list(store.rows_by_path().values())
    store.append(name_thing("thing-00", "mug", [rows[0].image.hash, rows[1].image.hash]))
    whole = learn(uri, tmp_path / "whole", "fast", SMALL, "cpu")

    class KilledError(Exception):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    out = tmp_path / "out"
    with monkeypatch.context() as patch:  # after the rows of the new store, before what people said
        patch.setattr("insclr.store.local.LocalStore.append", killed)
        with pytest.raises(KilledError):
            learn(uri, out, "fast", SMALL, "cpu")
    done = learn(uri, out, "fast", SMALL, "cpu")
    assert read_feedback(open_store(done.store)).name_of(rows[1].image.hash) == "mug"
    assert open_store(done.store).info.fingerprint == open_store(whole.store).info.fingerprint
    with pytest.raises(UserError, match="is not empty"):
        learn(uri, out, "fast", SMALL, "cpu")
    for number, left in enumerate(("letter.txt", "store/rows.sqlite", "run/model.safetensors")):
        file = tmp_path / str(number) / left  # of somebody else
        file.parent.mkdir(parents=True)
        file.write_text("mine")
        with pytest.raises(UserError, match=r"is not empty|is not a run folder"):
            learn(uri, tmp_path / str(number), "fast", SMALL, "cpu")
        assert file.read_text() == "mine"


def test_a_learned_store_keeps_the_parts_that_the_old_one_kept(
    small_collection: Path, tmp_path: Path
) -> None:
    model = resolve_model("pretrained:efficientnet_lite0")
    images = list_images(small_collection).subset(range(6))
    describer = Describer(model.source, model, 0, size=96)
    index_images(describer, images, tmp_path / "store", regions=True, local="on")
    index_learned(
        str(tmp_path / "store"), open_in_memory(model), tmp_path / "out", tmp_path / "out" / "store"
    )
    old, new = open_store(tmp_path / "store"), open_store(tmp_path / "out" / "store")
    assert (new.info.size, len(new.region_ids())) == (96, 6)
    before, after = LocalFeatureDatabase(old.parts), LocalFeatureDatabase(new.parts)
    assert after.hashes() == before.hashes() != set()


@pytest.mark.slow
def test_names_answers_questions_and_learning_work_with_milvus_lite(
    small_collection: Path, tmp_path: Path
) -> None:
    name, uri = "pretrained:efficientnet_lite0", str(tmp_path / "own.db")
    index_images(
        Describer(name, resolve_model(name), 0), list_images(small_collection).subset(range(24)), uri
    )
    store = open_store(uri)
    image = {path: row.image.hash for path, row in store.rows_by_path().items()}
    paths = sorted(image)
    asking = Asking(store)
    screen = asking.screen()
    assert screen is not None
    query, *shown = (asking.hashes[place] for place in (screen.query, *screen.candidates))
    entry = answer(query, shown[:1], shown[1:], store.info.fingerprint, asking.predict(query, shown))
    store.append([entry, *name_thing("thing-00", "mug", [image[paths[0]]])])
    things = build_gallery(store).things
    assert any(thing.name == "mug" for thing in things)
    again = Asking(store).questions  # made anew from the journal
    place = {one: at for at, one in enumerate(asking.hashes)}
    assert again.group[place[query]] == again.group[place[shown[0]]]
    store.close()
    done = learn(uri, tmp_path / "learned", "fast", SMALL, "cpu", "torch")
    learned = open_store(done.store)
    assert sorted(learned.rows_by_path()) == paths
    assert read_feedback(learned).name_of(image[paths[0]]) == "mug"
    assert len(read_feedback(learned).links) == len(shown)
    with pytest.raises(UserError, match="no engine"):
        learn(uri, tmp_path / "other", "fast", SMALL, "cpu", "steam")
    assert not (tmp_path / "other").exists()

"""Names, corrections and answers: kept by both engines, undone, and read back whatever became of the rows."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.histogram_describer import HistogramDescriber, draw_things
from helpers.store_info import INFO
from insclr.data.images import list_images
from insclr.errors import UserError
from insclr.feedback import entries as made
from insclr.feedback.feedback import Feedback, Thing, build_links, read_feedback, replay
from insclr.feedback.links import Links
from insclr.retrieval.index import index_images
from insclr.store import Store, create_store, new_entry, open_store


def test_what_was_said_is_there_after_opening_again_and_an_entry_is_kept_once(store: Store, uri: str) -> None:
    assert store.journal() == []
    entries = [made.answer("q", ["a"], ["b"]), *made.name_thing("t", "  Ann's\n mug ", ["a", "q"])]
    store.append(entries)
    store.append(entries[:1])
    again = open_store(uri)
    assert [one.id for one in again.journal()] == [one.id for one in entries]
    said = read_feedback(again)
    again.close()
    assert said.things == {"t": Thing("t", "Ann's mug", images=["a", "q"])}
    assert said.name_of("q") == "Ann's mug"
    assert [(link.one, link.other, link.same) for link in said.links] == [("q", "a", True), ("q", "b", False)]


def test_a_clock_that_was_set_back_keeps_the_order_of_acts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(made.name_thing("t", "old", ["a"]))
    yesterday = time.time_ns() - 86_400_000_000_000
    monkeypatch.setattr("insclr.store.rows._latest", "")  # as in a new process
    monkeypatch.setattr("insclr.store.rows.time.time_ns", lambda: yesterday)
    assert read_feedback(store).name_of("a") == "old"
    store.append(made.name_thing("t", "new", []))
    assert read_feedback(store).name_of("a") == "new"
    made.undo(store)
    assert read_feedback(store).name_of("a") == "old"


def test_undo_takes_back_the_last_entry_or_a_named_one(store: Store) -> None:
    first, second = made.answer("q", ["a"], []), made.answer("q", [], ["b"])
    store.append([first, second])
    assert made.undo(store) == [second]
    assert [link.other for link in read_feedback(store).links] == ["a"]
    store.append([second_again := made.answer("q", [], ["b"])])
    assert made.undo(store, first.id) == [first]
    assert [one.id for one in read_feedback(store).entries] == [second_again.id]
    with pytest.raises(UserError, match="no entry"):
        made.undo(store, first.id)
    made.undo(store)
    with pytest.raises(UserError, match="nothing to undo"):
        made.undo(store)


def test_a_photo_is_of_one_thing_and_corrections_are_links() -> None:
    entries = [
        *made.name_thing("t", "mug", ["a", "b", "c", "d"]),
        *made.remove_images("t", ["d"]),
        *made.name_thing("u", "cup", ["c"], split_from="t"),
        *made.add_images("u", ["e"]),
    ]
    said = replay(entries)
    assert said.things["t"].images == ["a", "b"]
    assert said.things["u"].images == ["c", "e"]
    assert "d" not in said.thing_of
    links = Links(said.links)
    assert links.different("a", "d")
    assert links.different("a", "c")
    assert links.same("c", "e")
    assert not links.same("a", "b")  # the machine put them together, nobody looked at the two
    assert Links(said.all_links()).same("a", "b")


def test_merging_keeps_the_name_and_hiding_can_be_taken_back() -> None:
    entries = [
        *made.name_thing("t", "", ["a"]),
        *made.name_thing("u", "cup", ["b"]),
        made.merge_things("t", "u"),
        hide := made.hide_thing("t", hidden=True),
    ]
    assert replay(entries).things == {"t": Thing("t", "cup", True, ["a", "b"])}
    assert Links(replay(entries).links).same("a", "b")
    assert not replay([*entries, new_entry("undo", {"entry": hide.id})]).things["t"].hidden


def test_an_answer_outweighs_what_a_name_implies() -> None:
    entries = [*made.name_thing("t", "mug", ["a", "b"]), made.answer("a", [], ["b"])]
    links = build_links(replay(entries))
    assert links.different("a", "b")
    assert len(links.contradictions) == 1


def test_things_of_different_names_are_different() -> None:
    entries = [*made.name_thing("t", "mug", ["a"]), *made.name_thing("u", "cup", ["b"])]
    assert build_links(replay(entries)).different("a", "b")


@pytest.mark.parametrize("name", ["x" * 121, "bell\a", "escape\x1b[2J", "left\u202eright"])
def test_a_name_is_short_plain_text(name: str) -> None:
    with pytest.raises(UserError):
        made.check_name(name)


def test_a_large_thing_takes_several_entries() -> None:
    images = [f"{i:032x}" for i in range(1000)]
    entries = made.name_thing("t", "mug", images)
    assert len(entries) == 5  # of 200 each
    assert replay(entries).things["t"].images == images


def test_undo_takes_back_all_entries_of_an_act_on_many_photos(store: Store) -> None:
    images = [f"{i:032x}" for i in range(1000)]
    store.append(made.name_thing("t", "mug", images))
    store.append(made.remove_images("t", images[100:]))
    assert read_feedback(store).things["t"].images == images[:100]
    assert made.describe_act(made.undo(store), read_feedback(store)) == "900 photos taken out of mug"
    assert read_feedback(store).things["t"].images == images
    first = read_feedback(store).entries[0].id  # by any of its entries
    assert made.describe_act(made.undo(store, first), read_feedback(store)) == "1000 photos called mug"
    assert read_feedback(store).entries == []


def test_entries_of_a_journal_that_does_not_tell_acts_are_taken_back_one_by_one(store: Store) -> None:
    data = {"thing": "t", "name": "mug", "split_from": ""}
    store.append([new_entry("name", data | {"images": ["a"]}), new_entry("name", data | {"images": ["b"]})])
    made.undo(store)
    assert read_feedback(store).things["t"].images == ["a"]


class _OtherDescriber(HistogramDescriber):
    name = "another"
    fingerprint = "fedcba9876543210"

    def _vector(self, picture: object) -> np.ndarray:
        return np.ascontiguousarray(super()._vector(picture)[::-1])  # type: ignore[arg-type]


def test_names_survive_reindexing_a_renamed_file_prune_and_a_new_model(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    draw_things(photos, 3, 3)
    uri = tmp_path / "store"
    index_images(HistogramDescriber(), list_images(photos), uri)
    store = open_store(uri)
    image = store.rows_by_path()["0/0.png"].image.hash
    store.append(made.name_thing("t", "mug", [image]))
    kept = tmp_path / "kept.png"
    (photos / "0/0.png").rename(kept)
    assert index_images(HistogramDescriber(), list_images(photos), uri, prune=True).pruned == 1
    kept.rename(photos / "2/renamed.png")
    index_images(HistogramDescriber(), list_images(photos), uri)
    said, rows = read_feedback(store), store.rows_by_path()
    assert said.name_of(rows["2/renamed.png"].image.hash) == "mug"
    other = tmp_path / "other"
    index_images(_OtherDescriber(), list_images(photos), other)
    with_names = open_store(other)
    with_names.append(store.journal())
    with_names.append(store.journal())
    assert read_feedback(with_names).name_of(with_names.rows_by_path()["2/renamed.png"].image.hash) == "mug"
    store.close()
    with_names.close()


def _append_until_killed(folder: str) -> None:
    store = open_store(folder)
    for number in range(1_000_000):
        store.append([made.answer(str(number), ["a"], []), made.answer(str(number), [], ["b"])])


def test_a_killed_writer_leaves_both_entries_or_none(tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", INFO)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["insclr.retrieval.index"])
    writer = context.Process(target=_append_until_killed, args=(str(tmp_path / "s"),))
    writer.start()
    while len(store.journal()) < 20:
        assert writer.is_alive()
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    queries = [one.data["query"] for one in store.journal()]
    assert queries[::2] == queries[1::2] == [str(number) for number in range(len(queries) // 2)]
    store.append([replace(made.skip("last"))])
    assert len(store.journal()) == len(queries) + 1
    store.close()


def test_every_kind_of_entry_has_a_description() -> None:
    paths = {"q": "cup.jpg"}
    entries = (
        made.answer("q", ["a"], ["b", "c"]),
        made.skip("q"),
        made.judge("q", "a", 1, same=True, model="m"),
        made.judge("gone", "a", 2, same=False, model="m"),
        *made.name_thing("thing-1", "mug", ["a", "b"]),
        *made.add_images("thing-1", ["c"]),
        *made.remove_images("thing-1", ["c"]),
        made.merge_things("thing-1", "thing-2"),
        made.hide_thing("thing-1", hidden=True),
    )
    feedback = replay(entries)
    told = [made.describe_act([entry], feedback, paths) for entry in entries]
    assert told == [
        "cup.jpg: 1 the same, 2 different",
        "cup.jpg: skipped",
        "cup.jpg: a result judged right",
        "a photo that is not here: a result judged wrong",
        "2 photos called mug",
        "1 photo added to mug",
        "1 photo taken out of mug",
        "mug joined with another thing",
        "mug hidden",
    ]


def test_an_act_of_several_entries_is_described_by_what_it_does() -> None:
    # A group gets its id before one photo is taken out of it; an import names things before it adds to them.
    taken_out = [
        *made.name_thing("t", "", ["a", "b", "c"], grouped=True),
        *made.remove_images("t", ["c"]),
    ]
    assert made.describe_act(taken_out, replay(taken_out)) == "1 photo taken out of a thing without a name"
    names = ["mug", "cup", "jug", "pot"]
    imported = [one for name in names for one in made.name_thing(name[0], name, [])]
    imported += [one for name in names for one in made.add_images(name[0], [f"{name} photo"])]
    assert made.describe_act(imported, replay(imported)) == "4 photos added to mug, cup, jug and 1 more"


def test_an_entry_told_without_paths_does_not_say_that_its_photo_is_gone() -> None:
    assert (
        made.describe_act([made.answer("q", ["a"], ["b"])], Feedback()) == "a photo: 1 the same, 1 different"
    )
    assert made.describe_act([made.skip("q")], Feedback()) == "a photo: skipped"

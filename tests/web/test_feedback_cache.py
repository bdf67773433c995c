"""What people said, as the server keeps it at hand."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from helpers.clients import client_of
from insclr.feedback import asking, feedback_cache
from insclr.feedback.entries import name_thing
from insclr.feedback.names import build_gallery
from insclr.web.served import ServedStore


@pytest.mark.parametrize("made", ["gallery", "questions"])
def test_names_of_results_do_not_wait_for_what_takes_long_to_make(
    collection: ServedStore, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    row = next(iter(collection.store.rows_by_path().values()))
    feedback = collection.feedback
    feedback.append(name_thing("thing-00", "mug", [row.image.hash]))
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        begun.set()
        go_on.wait(60)
        raise InterruptedError

    monkeypatch.setattr(feedback_cache, "build_gallery", slow)
    monkeypatch.setattr(asking, "Asking", slow)
    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(feedback.gallery if made == "gallery" else feedback.screen)
        try:
            assert begun.wait(30)
            assert pool.submit(feedback.names, [row.id]).result(timeout=10) == {row.id: "mug"}
        finally:
            go_on.set()
        with pytest.raises(InterruptedError):
            making.result()


def test_names_of_photos_that_joined_by_score_appear_once_the_gallery_is_built(
    collection: ServedStore,
) -> None:
    rows = collection.store.rows_by_path()
    for thing in sorted({path.partition("/")[0] for path in rows}):
        images = [row.image.hash for path, row in rows.items() if path.startswith(f"{thing}/")]
        left = rows["2/7.png"].image.hash
        named = [image for image in images if image != left]
        collection.feedback.append(name_thing(f"thing-0{thing}", f"mug {thing}", named))
    ids = [rows["2/0.png"].id, rows["2/7.png"].id]
    assert collection.feedback.names(ids) == {ids[0]: "mug 2"}
    collection.feedback.gallery()
    assert collection.feedback.names(ids) == {ids[0]: "mug 2", ids[1]: "mug 2"}


@pytest.mark.parametrize("times", [1, 100])
def test_rows_that_vanish_while_things_are_listed(
    times: int, collection: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`insclr index --prune` drops them in another process: the list is made again, or put off with 503."""
    made, left = build_gallery, iter(range(times))

    def vanishing(*arguments: Any) -> Any:
        if next(left, None) is not None:
            raise KeyError(7)
        return made(*arguments)

    monkeypatch.setattr(feedback_cache, "build_gallery", vanishing)
    monkeypatch.setattr(feedback_cache, "_PAUSES", (0.0, 0.0))
    answer = client_of(collection).get("/api/stores/0/things")
    assert answer.status_code == (200 if times == 1 else 503)
    assert times == 1 or answer.headers["retry-after"]

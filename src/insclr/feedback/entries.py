"""Make, describe and undo entries of the journal."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from insclr.data.table import one_line
from insclr.errors import UserError
from insclr.feedback.feedback import Feedback, read_feedback
from insclr.store import Entry, Store, new_entry

MAX_NAME = 120  # characters
_MAX_IMAGES = 200  # in one entry, each perhaps with a box: a Milvus server takes 64 kB
_SHOWN = 3  # names in a sentence
_MARK: dict[bool, dict[str, Any]] = {False: {}, True: {"grouped": True}}  # images that are named as a group


def answer(
    query: str,
    same: Sequence[str],
    different: Sequence[str],
    model: str = "",
    expected: Mapping[str, float] | None = None,
) -> Entry:
    """An answered screen: the candidates that show the same thing as the query, and those that do not.

    `model` is the fingerprint of the model that chose the candidates. `expected` holds its probability of "the same"
    for each of them: an unexpected answer may be a mistake and is asked for again.
    """
    data: dict[str, Any] = {"query": query, "same": list(same), "different": list(different), "model": model}
    if expected:
        data["expected"] = {image: round(likely, 3) for image, likely in expected.items()}
    return new_entry("answer", data)


def skip(query: str) -> Entry:
    """A screen that is not shown again."""
    return new_entry("skip", {"query": query})


def judge(query: str, result: str, rank: int, *, same: bool, model: str) -> Entry:
    """A judged result of the fair sample, `model` being a fingerprint; it measures and is never learned from."""
    data = {"query": query, "result": result, "rank": rank, "same": same, "model": model}
    return new_entry("judge", data)


def name_thing(
    thing: str, name: str, images: Sequence[str], split_from: str = "", *, grouped: bool = False
) -> list[Entry]:
    """Name these images one thing; without images, rename the thing.

    `split_from` is the thing that they were taken out of, which they do not show. `grouped` images were named as the
    group that they were in, and not one by one.
    """
    data = {"thing": thing, "name": check_name(name), "split_from": split_from} | _MARK[grouped]
    return _split(kind="name", data=data, images=images) or [new_entry("name", data | {"images": []})]


def add_images(
    thing: str, images: Sequence[str], *, grouped: bool = False, boxes: Mapping[str, Sequence[float]] = {}
) -> list[Entry]:
    """Images that show the thing; `boxes` hold where, for some of the images, as fractions of the image."""
    found = []
    for one in _split("add", {"thing": thing} | _MARK[grouped], images):
        where = {image: list(boxes[image]) for image in one.data["images"] if image in boxes}
        found.append(replace(one, data={**one.data, "boxes": where}) if where else one)
    return found


def remove_images(thing: str, images: Sequence[str]) -> list[Entry]:
    """Images that do not show the thing."""
    return _split("remove", {"thing": thing}, images)


def merge_things(into: str, thing: str) -> Entry:
    """Both are one thing."""
    return new_entry("merge", {"into": into, "thing": thing})


def hide_thing(thing: str, *, hidden: bool) -> Entry:
    """Leave a thing out of the gallery, or show it again."""
    return new_entry("hide", {"thing": thing, "hidden": hidden})


def new_thing_id() -> str:
    """An id that no other thing has."""
    return f"thing-{secrets.token_hex(8)}"


def undo(store: Store, entry: str = "") -> list[Entry]:
    """Undo an act by one of its entries, by default the last one; returns its entries.

    UserError when there is none.
    """
    entries = read_feedback(store).entries
    if not entries:
        raise UserError("There is nothing to undo: these photos have no names or answers yet.")
    found = entries[-1] if not entry else next((one for one in entries if one.id == entry), None)
    if found is None:
        raise UserError(
            f"There is no entry {one_line(entry)} that holds: `insclr answers list STORE` shows them."
        )
    act = find_act(found, entries)
    store.append([new_entry("undo", {"entry": one.id}) for one in act])
    return act


def join_acts(entries: Sequence[Entry]) -> list[Entry]:
    """The entries as one act: a single undo takes all of them back."""
    act = secrets.token_hex(8)
    return [replace(one, data={**one.data, "act": act}) for one in entries]


def find_act(entry: Entry, entries: Sequence[Entry]) -> list[Entry]:
    """The entries of the act that this one is a part of: many images take several."""
    act = entry.data.get("act")
    return [one for one in entries if one.data.get("act") == act] if act else [entry]


def describe_act(act: Sequence[Entry], feedback: Feedback, paths: Mapping[str, str] | None = None) -> str:
    """The entries of an act in words; `paths` are those of photos by the hashes of their content."""
    kind, data = act[-1].kind, act[-1].data
    about = [one for one in act if one.kind == kind]  # an act may first give a group its id
    if kind == "name":
        about = [one for one in about if one.data["thing"] == data["thing"]]
    images = sum(len(one.data.get("images", ())) for one in about)
    photos = f"{images} photo{'' if images == 1 else 's'}"
    query = "a photo"
    if paths is not None:
        query = paths.get(str(data.get("query", "")), "a photo that is not here")
    match kind:
        case "answer":
            return (
                f"{query}: {len(data.get('same', ()))} the same, {len(data.get('different', ()))} different"
            )
        case "skip":
            return f"{query}: skipped"
        case "judge":
            return f"{query}: a result judged {'right' if data.get('same') else 'wrong'}"
        case "name":
            return f"{photos if images else 'a thing'} called {data.get('name') or 'one thing'}"
        case "add":
            return f"{photos} added to {_name_things(about, act, feedback)}"
        case "remove":
            return f"{photos} taken out of {_name_things(about, act, feedback)}"
        case "merge":
            return f"{feedback.name_of_thing(str(data.get('into'))) or 'a thing'} joined with another thing"
        case "hide":
            name = _name_things(about, act, feedback)
            return f"{name} hidden" if data.get("hidden") else f"{name} shown again"
        case _:
            return kind


def _name_things(about: Sequence[Entry], act: Sequence[Entry], feedback: Feedback) -> str:
    """The names of the things that entries of an act are about; an undone act may have named them itself."""
    given = {one.data["thing"]: one.data["name"] for one in act if one.data.get("name")}
    things = dict.fromkeys(str(one.data.get("thing")) for one in about)
    names = [
        given.get(thing) or feedback.name_of_thing(thing) or "a thing without a name" for thing in things
    ]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def check_name(name: str) -> str:
    """A name as it is kept: one line, without space around it; UserError when it is too long or no text."""
    name = " ".join(name.split())
    if len(name) > MAX_NAME:
        raise UserError(f"A name has at most {MAX_NAME} characters; this one has {len(name)}.")
    if not name.isprintable():
        raise UserError("A name holds characters that cannot be shown: leave them out.")
    return name


def _split(kind: str, data: Mapping[str, Any], images: Sequence[str]) -> list[Entry]:
    """Entries of at most _MAX_IMAGES images each; several entries of one act have the same `act`."""
    act = {"act": secrets.token_hex(8)} if len(images) > _MAX_IMAGES else {}
    return [
        new_entry(kind, {**data, "images": list(images[at : at + _MAX_IMAGES]), **act})
        for at in range(0, len(images), _MAX_IMAGES)
    ]

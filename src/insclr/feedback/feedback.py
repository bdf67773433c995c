"""What people said about the images of a store: names, corrections and answers, read from its journal.

Images are named by the hash of their content, so all of it survives a new name of the file, a store that is made
anew and another model. Nothing is ever changed in the journal: undoing is an entry too.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from insclr.data.cells import one_line
from insclr.errors import UserError
from insclr.feedback.links import Link, Links
from insclr.store import Entry, Store, new_entry

MAX_NAME = 120  # characters
MAX_IMAGES = 400  # named in one entry
_MAX_PAIRED_THINGS = 300  # named things that are told from each other pair by pair


@dataclass(frozen=True)
class Thing:
    """What a person calls one instance, or set apart without a name."""

    id: str
    name: str = ""
    hidden: bool = False
    images: tuple[str, ...] = ()  # hashes, in the order they were said


@dataclass(frozen=True)
class Judged:
    """A person's judgement of one (query, result) pair of the fair sample."""

    query: str
    result: str
    rank: int  # of the result, from 1
    same: bool


@dataclass
class Feedback:
    """Everything that holds, in the order it was said."""

    entries: list[Entry] = field(default_factory=list)  # that were not undone
    things: dict[str, Thing] = field(default_factory=dict)
    thing_of: dict[str, str] = field(default_factory=dict)  # image: thing
    links: list[Link] = field(default_factory=list)  # that people meant as such
    skipped: set[str] = field(default_factory=set)  # queries that people passed over
    judged: list[Judged] = field(default_factory=list)
    asked_by: dict[str, str] = field(default_factory=dict)  # entry of an answer: the model that asked

    def name_of(self, image: str) -> str:
        """The name of the thing that the image was said to show; empty where there is none."""
        thing = self.things.get(self.thing_of.get(image, ""))
        return thing.name if thing else ""

    def all_links(self) -> list[Link]:
        """The links that people meant, then what their names imply: a thing is one, two names are two."""
        implied: list[Link] = []
        anchors: list[str] = []
        for thing in self.things.values():
            first = thing.images[:1]
            implied += [Link(first[0], image, True, thing.id) for image in thing.images[1:]]
            anchors += first if thing.name else ()
        if len(anchors) <= _MAX_PAIRED_THINGS:
            named = {self.things[self.thing_of[image]].name: image for image in anchors}
            firsts = list(named.values())
            implied += [
                Link(one, other, False) for at, one in enumerate(firsts) for other in firsts[at + 1 :]
            ]
        return [*self.links, *implied]


def read_feedback(store: Store) -> Feedback:
    """What the store's journal says."""
    return replay(store.journal())


def replay(entries: Iterable[Entry]) -> Feedback:
    """The state after all entries; unknown kinds, of a later version, are passed over."""
    ordered = sorted(entries)
    undone = {str(one.data.get("entry")) for one in ordered if one.kind == "undo"}
    said = Feedback()
    for entry in ordered:
        act = _ACTS.get(entry.kind)
        if act is not None and entry.id not in undone:
            act(said, entry)
            said.entries.append(entry)
    return said


def closed(said: Feedback) -> Links:
    """The links that people meant, closed under transitivity; `contradictions` tells what does not fit."""
    return Links(said.links)


def links_to_learn(said: Feedback) -> Links:
    """All links: what names imply yields where it contradicts an answer."""
    return Links(said.all_links())


# What people do, as entries


def answer(
    query: str,
    same: Sequence[str],
    different: Sequence[str],
    model: str = "",
    expected: Mapping[str, float] | None = None,
) -> Entry:
    """A screen: which candidates show the same thing as the query, which do not.

    `model` is the fingerprint of the model that chose the candidates, `expected` how likely it found each of them
    the same: an answer that was not to be expected may be a slip, and is asked for again.
    """
    data: dict[str, Any] = {"query": query, "same": list(same), "different": list(different), "model": model}
    if expected:
        data["expected"] = {image: round(likely, 3) for image, likely in expected.items()}
    return new_entry("answer", data)


def skip(query: str) -> Entry:
    """A screen that was passed over: it is not asked again."""
    return new_entry("skip", {"query": query})


def judge(query: str, result: str, rank: int, *, same: bool, model: str) -> Entry:
    """An answer of the fair sample, `model` being a fingerprint: kept apart, it measures and never teaches."""
    data = {"query": query, "result": result, "rank": rank, "same": same, "model": model}
    return new_entry("judge", data)


def name_thing(thing: str, name: str, images: Sequence[str], split_from: str = "") -> list[Entry]:
    """Call these images one thing; without images, give the thing another name.

    `split_from` is the thing that they were taken out of, which they do not show.
    """
    data = {"thing": thing, "name": checked_name(name), "split_from": split_from}
    return _parts("name", data, images) or [new_entry("name", data | {"images": []})]


def add_images(thing: str, images: Sequence[str]) -> list[Entry]:
    """Images that show the thing, said one by one."""
    return _parts("add", {"thing": thing}, images)


def remove_images(thing: str, images: Sequence[str]) -> list[Entry]:
    """Images that do not show the thing."""
    return _parts("remove", {"thing": thing}, images)


def merge_things(into: str, thing: str) -> Entry:
    """Both are one thing."""
    return new_entry("merge", {"into": into, "thing": thing})


def hide_thing(thing: str, *, hidden: bool) -> Entry:
    """Leave a thing out of the gallery, or show it again."""
    return new_entry("hide", {"thing": thing, "hidden": hidden})


def undo(store: Store, entry: str = "") -> Entry:
    """Take back an act by one of its entries, by default the last one that holds; UserError when there is none.

    Gives the act as one entry.
    """
    holding = read_feedback(store).entries
    if not holding:
        raise UserError("There is nothing to undo: nobody has said anything about these photos yet.")
    found = holding[-1] if not entry else next((one for one in holding if one.id == entry), None)
    if found is None:
        raise UserError(
            f"There is no entry {one_line(entry)} that holds: `insclr answers list STORE` shows them."
        )
    act = whole_act(found, holding)
    store.append([new_entry("undo", {"entry": one.id}) for one in act])
    return as_one(act)


def whole_act(entry: Entry, entries: Sequence[Entry]) -> list[Entry]:
    """The entries of the act that this one is a part of: many images take several."""
    act = entry.data.get("act")
    return [one for one in entries if one.data.get("act") == act] if act else [entry]


def as_one(act: Sequence[Entry]) -> Entry:
    """The last entry of an act with the images of all of them, to tell it in words."""
    if len(act) == 1:
        return act[0]
    images = [image for one in act for image in one.data.get("images", ())]
    return replace(act[-1], data={**act[-1].data, "images": images})


def describe_entry(entry: Entry, paths: Mapping[str, str] | None = None) -> str:
    """An entry in words; `paths` names photos by the hashes of their content, and without it none is named."""
    data = entry.data
    images = len(data.get("images", ()))
    query = "a photo"
    if paths is not None:
        query = paths.get(str(data.get("query", "")), "a photo that is not here")
    if entry.kind == "answer":  # the only kind whose `same` is a list
        return f"{query}: {len(data.get('same', ()))} the same, {len(data.get('different', ()))} different"
    words = {
        "skip": f"{query}: skipped",
        "judge": f"{query}: a result judged {'right' if data.get('same') else 'wrong'}",
        "name": f"{images} photos called {data.get('name') or 'one thing'}",
        "add": f"{images} photos added to a thing",
        "remove": f"{images} photos taken out of a thing",
        "merge": "two things joined",
        "hide": "a thing hidden" if data.get("hidden") else "a thing shown again",
    }
    return words.get(entry.kind, entry.kind)


def checked_name(name: str) -> str:
    """A name as it is kept: one line, without space around it; UserError when it is too long or no text."""
    name = " ".join(name.split())
    if len(name) > MAX_NAME:
        raise UserError(f"A name has at most {MAX_NAME} characters; this one has {len(name)}.")
    if not name.isprintable():
        raise UserError("A name holds characters that cannot be shown: leave them out.")
    return name


def _parts(kind: str, data: Mapping[str, str], images: Sequence[str]) -> list[Entry]:
    """An act as entries of so many images each; where there are several, `act` tells that they are one."""
    act = {"act": secrets.token_hex(8)} if len(images) > MAX_IMAGES else {}
    return [
        new_entry(kind, {**data, "images": list(images[at : at + MAX_IMAGES]), **act})
        for at in range(0, len(images), MAX_IMAGES)
    ]


# What entries mean


def answer_links(entry: Entry) -> list[Link]:
    """What an answered screen says of pairs of images."""
    query, expected = str(entry.data["query"]), entry.data.get("expected") or {}
    return [
        Link(query, str(image), same, entry.id, expected.get(image))
        for key, same in (("same", True), ("different", False))
        for image in entry.data.get(key, ())
    ]


def _answer(said: Feedback, entry: Entry) -> None:
    said.asked_by[entry.id] = str(entry.data.get("model", ""))
    said.links += answer_links(entry)


def _skip(said: Feedback, entry: Entry) -> None:
    said.skipped.add(str(entry.data["query"]))


def _judge(said: Feedback, entry: Entry) -> None:
    data = entry.data
    said.judged.append(Judged(str(data["query"]), str(data["result"]), int(data["rank"]), bool(data["same"])))


def _name(said: Feedback, entry: Entry) -> None:
    data = entry.data
    thing = said.things.setdefault(str(data["thing"]), Thing(str(data["thing"])))
    images = _images(data)
    said.things[thing.id] = replace(thing, name=str(data["name"]))
    other = said.things.get(str(data.get("split_from", "")))
    _move(said, thing.id, images)
    if other is not None and images:
        said.links += [Link(images[0], image, True, entry.id) for image in images[1:]]
        rest = said.things[other.id].images
        said.links += [Link(rest[0], images[0], False, entry.id)] if rest else []


def _add(said: Feedback, entry: Entry) -> None:
    thing = said.things.setdefault(str(entry.data["thing"]), Thing(str(entry.data["thing"])))
    images = _images(entry.data)
    first = (*thing.images, *images)[:1]
    said.links += [Link(first[0], image, True, entry.id) for image in images if image != first[0]]
    _move(said, thing.id, images)


def _remove(said: Feedback, entry: Entry) -> None:
    thing = said.things.get(str(entry.data["thing"]))
    if thing is None:
        return
    images = _images(entry.data)
    rest = tuple(image for image in thing.images if image not in set(images))
    said.things[thing.id] = replace(thing, images=rest)
    for image in images:
        if said.thing_of.get(image) == thing.id:
            del said.thing_of[image]
    said.links += [Link(rest[0], image, False, entry.id) for image in images if rest]


def _merge(said: Feedback, entry: Entry) -> None:
    into, gone = (said.things.get(str(entry.data[key])) for key in ("into", "thing"))
    if into is None or gone is None or into.id == gone.id:
        return
    if into.images and gone.images:
        said.links.append(Link(into.images[0], gone.images[0], True, entry.id))
    said.things[into.id] = replace(into, name=into.name or gone.name)
    _move(said, into.id, gone.images)
    del said.things[gone.id]


def _hide(said: Feedback, entry: Entry) -> None:
    thing = said.things.get(str(entry.data["thing"]))
    if thing is not None:
        said.things[thing.id] = replace(thing, hidden=bool(entry.data["hidden"]))


def _images(data: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(image) for image in data.get("images", ())))


def _move(said: Feedback, thing: str, images: Sequence[str]) -> None:
    """Let images belong to a thing, and to no other any more."""
    moved = set(images)
    for other in {said.thing_of.get(image, thing) for image in images} - {thing}:
        rest = tuple(image for image in said.things[other].images if image not in moved)
        said.things[other] = replace(said.things[other], images=rest)
    kept = said.things[thing].images
    said.things[thing] = replace(said.things[thing], images=tuple(dict.fromkeys((*kept, *images))))
    said.thing_of |= dict.fromkeys(images, thing)


_ACTS = {
    "answer": _answer,
    "skip": _skip,
    "judge": _judge,
    "name": _name,
    "add": _add,
    "remove": _remove,
    "merge": _merge,
    "hide": _hide,
}

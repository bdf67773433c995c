"""Feedback about the images of a store: names, corrections and answers, read from its journal.

Images are named by the hash of their content. So feedback holds after a file was renamed, for a new store and for
another model. The journal is never changed: an undo is an entry too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from insclr.feedback.links import Link, Links
from insclr.store import Entry, Store

_MAX_PAIRED_THINGS = 300  # named things that get a cannot-link for every pair


@dataclass
class Thing:
    """One instance that a person named, or set apart without a name."""

    id: str
    name: str = ""
    hidden: bool = False
    images: list[str] = field(default_factory=list)  # hashes, in the order of the entries


@dataclass(frozen=True)
class Judged:
    """A person's judgement of one (query, result) pair of the fair sample."""

    query: str
    result: str
    rank: int  # of the result, from 1
    same: bool


@dataclass
class Feedback:
    """All feedback that was not undone, in the order of the entries."""

    entries: list[Entry] = field(default_factory=list)
    things: dict[str, Thing] = field(default_factory=dict)
    thing_of: dict[str, str] = field(default_factory=dict)  # image: thing
    links: list[Link] = field(default_factory=list)  # from answers and corrections
    skipped: set[str] = field(default_factory=set)  # queries
    judged: list[Judged] = field(default_factory=list)
    asked_by: dict[str, str] = field(default_factory=dict)  # entry of an answer: the model that asked

    def name_of(self, image: str) -> str:
        """The name of the image's thing; empty where there is none."""
        thing = self.things.get(self.thing_of.get(image, ""))
        return thing.name if thing else ""

    def all_links(self) -> list[Link]:
        """The links, then what names imply: a thing is one instance, two names are two instances."""
        implied: list[Link] = []
        named: dict[str, str] = {}  # name: image
        for thing in self.things.values():
            implied += [Link(thing.images[0], image, True, thing.id) for image in thing.images[1:]]
            if thing.name and thing.images:
                named[thing.name] = thing.images[0]
        firsts = list(named.values())
        if len(firsts) <= _MAX_PAIRED_THINGS:
            implied += [
                Link(one, other, False) for at, one in enumerate(firsts) for other in firsts[at + 1 :]
            ]
        return [*self.links, *implied]

    def apply(self, entry: Entry) -> bool:
        """Add an entry; False for an unknown kind, which a later version may have written."""
        data = entry.data
        match entry.kind:
            case "answer":
                self.asked_by[entry.id] = str(data.get("model", ""))
                self.links += answer_links(entry)
            case "skip":
                self.skipped.add(str(data["query"]))
            case "judge":
                pair = str(data["query"]), str(data["result"])
                self.judged.append(Judged(*pair, int(data["rank"]), bool(data["same"])))
            case "name":
                self._name(entry)
            case "add":
                thing, images = self._thing(entry), _images(entry)
                first = (*thing.images, *images)[:1]
                self.links += [Link(first[0], image, True, entry.id) for image in images if image != first[0]]
                self._move(thing, images)
            case "remove":
                self._remove(entry)
            case "merge":
                self._merge(entry)
            case "hide":
                if str(data["thing"]) in self.things:
                    self._thing(entry).hidden = bool(data["hidden"])
            case _:
                return False
        return True

    def _thing(self, entry: Entry) -> Thing:
        id_ = str(entry.data["thing"])
        return self.things.setdefault(id_, Thing(id_))

    def _name(self, entry: Entry) -> None:
        thing, images = self._thing(entry), _images(entry)
        thing.name = str(entry.data["name"])
        other = self.things.get(str(entry.data.get("split_from", "")))
        self._move(thing, images)
        if other is not None and images:
            self.links += [Link(images[0], image, True, entry.id) for image in images[1:]]
            self.links += [Link(rest, images[0], False, entry.id) for rest in other.images[:1]]

    def _remove(self, entry: Entry) -> None:
        thing = self.things.get(str(entry.data["thing"]))
        if thing is None:
            return
        images = _images(entry)
        gone = set(images)
        thing.images = [image for image in thing.images if image not in gone]
        for image in images:
            if self.thing_of.get(image) == thing.id:
                del self.thing_of[image]
        self.links += [Link(rest, image, False, entry.id) for rest in thing.images[:1] for image in images]

    def _merge(self, entry: Entry) -> None:
        into, gone = (self.things.get(str(entry.data[key])) for key in ("into", "thing"))
        if into is None or gone is None or into is gone:
            return
        if into.images and gone.images:
            self.links.append(Link(into.images[0], gone.images[0], True, entry.id))
        into.name = into.name or gone.name
        self._move(into, gone.images)
        del self.things[gone.id]

    def _move(self, thing: Thing, images: Sequence[str]) -> None:
        """Let images belong to this thing and to no other."""
        moved = set(images)
        for other in {self.thing_of.get(image, thing.id) for image in images} - {thing.id}:
            self.things[other].images = [one for one in self.things[other].images if one not in moved]
        thing.images = list(dict.fromkeys((*thing.images, *images)))
        self.thing_of |= dict.fromkeys(images, thing.id)


def read_feedback(store: Store) -> Feedback:
    """The feedback in the store's journal."""
    return replay(store.journal())


def replay(entries: Iterable[Entry]) -> Feedback:
    """The feedback after all entries."""
    ordered = sorted(entries)
    undone = {str(one.data.get("entry")) for one in ordered if one.kind == "undo"}
    feedback = Feedback()
    feedback.entries = [one for one in ordered if one.id not in undone and feedback.apply(one)]
    return feedback


def build_links(feedback: Feedback) -> Links:
    """All links, closed: what names imply yields where it contradicts an answer."""
    return Links(feedback.all_links())


def answer_links(entry: Entry) -> list[Link]:
    """The links of an answered screen."""
    query, expected = str(entry.data["query"]), entry.data.get("expected") or {}
    return [
        Link(query, str(image), same, entry.id, expected.get(image))
        for key, same in (("same", True), ("different", False))
        for image in entry.data.get(key, ())
    ]


def _images(entry: Entry) -> list[str]:
    return list(dict.fromkeys(str(image) for image in entry.data.get("images", ())))

"""Feedback about the images of a store, read from its journal: names, corrections, answers, judged precision."""

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from insclr.data.decode import Box
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
    grouped: set[str] = field(default_factory=set)  # those that a person named as a group, not one by one
    scored: set[str] = field(default_factory=set)  # of these, those that joined by score in an imported table


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
    boxes: dict[str, Box] = field(default_factory=dict)  # image: where its thing is, as fractions of it

    def name_of(self, image: str) -> str:
        """The name of the image's thing; empty where there is none."""
        return self.name_of_thing(self.thing_of.get(image, ""))

    def name_of_thing(self, id_: str) -> str:
        """The name of a thing; empty where it has none, or is not there."""
        thing = self.things.get(id_)
        return thing.name if thing else ""

    def all_links(self, *, by_people: bool = False) -> list[Link]:
        """The links, then what names imply: a thing is one instance, two names are two instances.

        With `by_people`, images that nobody named imply nothing: those by score, and groups without a name.
        """
        implied: list[Link] = []
        named: dict[str, str] = {}  # name: image
        for thing in self.things.values():
            unnamed = thing.scored if thing.name else thing.grouped
            images = [image for image in thing.images if not (by_people and image in unnamed)]
            implied += [Link(images[0], image, True, thing.id) for image in images[1:]]
            if thing.name and images:
                named[thing.name] = images[0]
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
                if not data.get("grouped"):
                    self.links += [Link(first[0], one, True, entry.id) for one in images if one != first[0]]
                self._move(thing, images, grouped=bool(data.get("grouped")))
                if data.get("grouped"):
                    thing.scored |= set(images) & thing.grouped
                self.boxes |= {image: (a, b, c, d) for image, (a, b, c, d) in data.get("boxes", {}).items()}
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
        self._move(thing, images, grouped=bool(entry.data.get("grouped")))
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
        thing.grouped -= gone
        thing.scored -= gone
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
        grouped, scored = into.grouped | gone.grouped, into.scored | gone.scored
        self._move(into, gone.images)
        into.grouped, into.scored = grouped, scored
        del self.things[gone.id]

    def _move(self, thing: Thing, images: Sequence[str], *, grouped: bool = False) -> None:
        """Let images belong to this thing and to no other; what a person put there one by one stays so."""
        moved = set(images)
        thing.grouped = thing.grouped | (moved - set(thing.images)) if grouped else thing.grouped - moved
        thing.scored -= moved
        for other in {self.thing_of.get(image, thing.id) for image in images} - {thing.id}:
            self.things[other].images = [one for one in self.things[other].images if one not in moved]
            self.things[other].grouped -= moved
            self.things[other].scored -= moved
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


class KnownPairs:
    """Which images show the same instance by names of photos and groups, corrections, answers."""

    def __init__(self, feedback: Feedback) -> None:
        self._links = Links(feedback.all_links(by_people=True))
        self._images = {image for link in self._links.applied for image in (link.one, link.other)}

    def relation(self, queries: Set[str], image: str) -> int:
        """1: the image shows the instance of a query; -1: another one; 0: not known."""
        about = [query for query in queries if query in self._images and query != image]
        if image not in self._images or not about:
            return 0
        if any(self._links.same(query, image) for query in about):
            return 1
        return -1 if any(self._links.different(query, image) for query in about) else 0


def read_known(store: Store) -> KnownPairs:
    """What the store's journal holds of pairs of images."""
    return KnownPairs(read_feedback(store))


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


_DRAWS = 2000
DEPTH = 5  # results are drawn from so many first ones
ENOUGH = 30  # judgements before a precision is reported
_Z = 1.959964  # 95 %


@dataclass(frozen=True)
class Draw:
    """One of the sample: a query, a rank, and the result that a model gives there."""

    query: str
    rank: int  # from 1
    result: str
    model: str  # its fingerprint


@dataclass(frozen=True)
class Precision:
    """The share of right results among the first, with a 95 % interval."""

    right: int
    judged: int  # results of this model
    answers: int = 0  # of the person: where models are compared, one may be about one of them alone

    @property
    def share(self) -> float:
        """The share in the sample."""
        return self.right / self.judged if self.judged else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval: it stays within 0 and 1 and holds for few answers."""
        if not self.judged:
            return 0.0, 1.0
        n, share = self.judged, self.share
        centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
        return max(0.0, centre - half), min(1.0, centre + half)

    def sentence(self) -> str:
        """In words."""
        if (answers := max(self.answers, self.judged)) < ENOUGH:
            return f"{answers} of {ENOUGH} results judged"
        low, high = self.interval
        return (
            f"{self.share:.0%} of the first {DEPTH} results show the same thing "
            f"(between {low:.0%} and {high:.0%}, from {self.judged} judged results)"
        )


class FirstResults:
    """The first results of searching a store for its own images, kept while the store has the same version."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.images = {row.image.hash: row.id for row in store.rows_by_path().values()}  # hash: id
        self._hash = {id_: image for image, id_ in self.images.items()}
        self._found: dict[tuple[str, int], list[str]] = {}

    def at(self, query: str, rank: int) -> str:
        """The result at this rank, from 1, by the hash of its content; empty where there are not so many."""
        depth = max(rank, DEPTH)  # one search for all ranks: equally similar results have one order
        if (query, depth) not in self._found:
            ids = self.store.search(self.store.descriptors([self.images[query]]), depth + 4).ids[0]
            self._found[query, depth] = [
                self._hash[int(one)] for one in ids if self._hash.get(int(one), query) != query
            ]
        others = self._found[query, depth]
        return others[rank - 1] if len(others) >= rank else ""


class FairSample:
    """Queries and ranks drawn uniformly, the same for every model, and the judgements of the results."""

    def __init__(self, results: Sequence[FirstResults], feedback: Feedback, seed: int = 0) -> None:
        self._results = results
        self._judged = {(one.query, one.result): one.same for one in feedback.judged}
        images = set.intersection(*(set(one.images) for one in results))
        asked = dict.fromkeys((one.query, one.rank) for one in feedback.judged if one.query in images)
        common = sorted(images)
        generator = np.random.default_rng(seed + len(asked))
        drawn: list[tuple[str, int]] = []
        if common:
            queries = generator.integers(0, len(common), _DRAWS)
            ranks = generator.integers(1, DEPTH + 1, _DRAWS)
            drawn = [(common[query], int(rank)) for query, rank in zip(queries, ranks, strict=True)]
        self._draws = list(dict.fromkeys([*asked, *drawn]))

    def draw(self) -> Draw | None:
        """The next result to judge; None when all are judged."""
        for query, rank in self._draws:
            for one in self._results:
                result = one.at(query, rank)
                if result and (query, result) not in self._judged:
                    return Draw(query, rank, result, one.store.info.fingerprint)
        return None

    def precision(self, place: int) -> Precision:
        """Of the store at this place, over the draws that were judged for every store."""
        right = judged = 0
        for query, rank in self._draws[: len(self._judged) + 1]:
            results = [one.at(query, rank) for one in self._results]
            if all((query, result) in self._judged for result in results):
                judged += 1
                right += self._judged[query, results[place]]
        return Precision(right, judged, len(self._judged))

"""Must-links and cannot-links between images, closed under transitivity, with the reasons for every contradiction.

People make mistakes. An unexpected answer is more likely a mistake than an expected one. Where two answers contradict
each other and the earlier one is less likely, both are set aside and asked for again.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from insclr.arrays import Ids

_MISTAKES = 0.02  # share of wrong answers of a careful person
_SUREST = 0.99  # no expectation is surer than this


@dataclass(frozen=True)
class Link:
    """Two images show the same instance, or different ones."""

    one: str
    other: str
    same: bool
    source: str = ""  # id of the journal's entry
    # Probability of "the same" before the answer; None: given on purpose, like a name, and never a mistake.
    expected: float | None = None

    @property
    def wrong(self) -> float:
        """The probability that it is a mistake, given what was expected (Bayes' rule)."""
        if self.expected is None:
            return 0.0
        right = min(_SUREST, max(1 - _SUREST, self.expected if self.same else 1 - self.expected))
        mistake = (1 - right) * _MISTAKES
        return mistake / (mistake + right * (1 - _MISTAKES))


@dataclass(frozen=True)
class Contradiction:
    """A link that cannot be true beside earlier ones, and the chain of those that imply the opposite."""

    link: Link
    chain: tuple[Link, ...]
    set_aside: Link | None = None  # of the chain, together with the link; None: the earlier ones hold


class Links:
    """Links, added one by one. A link that contradicts earlier ones is not applied."""

    def __init__(self, links: Iterable[Link] = ()) -> None:
        self.contradictions: list[Contradiction] = []
        self._clear()
        for link in links:
            self.add(link)

    def _clear(self) -> None:
        self.applied: list[Link] = []
        self._members: dict[
            str, list[str]
        ] = {}  # image: its component, one list for all members, the root first
        self._near: dict[str, list[Link]] = defaultdict(list)  # applied must-links by image
        self._apart: dict[str, dict[str, Link]] = defaultdict(dict)  # root: other root: a cannot-link

    def add(self, link: Link) -> Contradiction | None:
        """Apply a link, or record and return its contradiction with earlier ones.

        The least likely earlier link is set aside too if it is more likely a mistake than this one.
        """
        one, other = self.root(link.one), self.root(link.other)
        if link.same and other in self._apart[one]:
            between = self._apart[one][other]
            near, far = between.one, between.other
            if self.root(near) != one:
                near, far = far, near
            chain = (*self._path(link.one, near), between, *self._path(far, link.other))
        elif not link.same and one == other:
            chain = self._path(link.one, link.other)
        else:
            self._apply(link)
            return None
        weakest = max(chain, key=lambda earlier: earlier.wrong, default=link)
        found = Contradiction(link, chain, weakest if weakest.wrong > link.wrong else None)
        self.contradictions.append(found)
        if found.set_aside is not None:
            kept = [earlier for earlier in self.applied if earlier is not weakest]
            self._clear()
            for earlier in kept:
                self._apply(earlier)
        return found

    def find_refused(self) -> list[Link]:
        """Links that were not applied because earlier ones hold."""
        return [one.link for one in self.contradictions if one.set_aside is None]

    def find_unresolved(self) -> list[Contradiction]:
        """Contradictions that a person should see: not those that later answers decided."""
        return [
            one
            for one in self.contradictions
            if one.set_aside is None
            or not (self.same(one.link.one, one.link.other) or self.different(one.link.one, one.link.other))
        ]

    def root(self, image: str) -> str:
        """The image that represents all images of its instance."""
        return self._members.setdefault(image, [image])[0]

    def same(self, one: str, other: str) -> bool:
        """Whether the links imply that both show one instance."""
        return self.root(one) == self.root(other)

    def different(self, one: str, other: str) -> bool:
        """Whether the links imply that the two show different instances."""
        return self.root(other) in self._apart[self.root(one)]

    def components(self) -> list[list[str]]:
        """Images with links, those of one instance together."""
        return [members for image, members in self._members.items() if members[0] == image]

    def apart(self) -> list[tuple[str, str]]:
        """Pairs of roots, one for every two components that show different instances."""
        return [(one, other) for one, others in self._apart.items() for other in others if one < other]

    def _apply(self, link: Link) -> None:
        one, other = self.root(link.one), self.root(link.other)
        self.applied.append(link)
        if not link.same:
            self._apart[one].setdefault(other, link)
            self._apart[other].setdefault(one, link)
            return
        self._near[link.one].append(link)
        self._near[link.other].append(link)
        if one == other:
            return
        if len(self._members[one]) < len(self._members[other]):
            one, other = other, one
        moved = self._members[other]
        self._members[one] += moved
        self._members |= dict.fromkeys(moved, self._members[one])
        for third, between in self._apart.pop(other, {}).items():
            del self._apart[third][other]
            self._apart[one].setdefault(third, between)
            self._apart[third].setdefault(one, between)

    def _path(self, start: str, end: str) -> tuple[Link, ...]:
        """The shortest chain of must-links between two images of a component."""
        came: dict[str, Link | None] = {start: None}
        waiting = deque([start])
        while waiting and end not in came:
            here = waiting.popleft()
            for link in self._near[here]:
                there = link.other if link.one == here else link.one
                if there not in came:
                    came[there] = link
                    waiting.append(there)
        path: list[Link] = []
        while (link_back := came[end]) is not None:
            path.append(link_back)
            end = link_back.one if link_back.other == end else link_back.other
        return tuple(reversed(path))


@dataclass(frozen=True)
class KnownImages:
    """What links imply about N images, which are named by their places."""

    same: Ids  # (N,) labels: equal where images are known to show one instance
    apart: Sequence[tuple[int, int]] = ()  # labels of instances that are known to be different
    joins: Sequence[tuple[int, int, float]] = ()  # must-links: image, image, probability of a mistake
    refused: Sequence[tuple[int, int]] = ()  # pairs of images whose answer was not applied


def locate_links(links: Links, hashes: Sequence[str]) -> KnownImages:
    """What links imply about the images of these hashes; copies of a file show the same."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, image in enumerate(hashes):
        places[image].append(place)
    same = np.arange(len(hashes))
    for copies in places.values():
        same[copies] = copies[0]
    label: dict[str, int] = {}  # of a component, by its root
    for component in links.components():
        here = [place for image in component for place in places.get(image, ())]
        if here:
            same[here] = here[0]
            label[component[0]] = here[0]

    def locate(some: Iterable[Link]) -> list[tuple[int, int, Link]]:
        return [
            (places[link.one][0], places[link.other][0], link)
            for link in some
            if link.one in places and link.other in places
        ]

    return KnownImages(
        same,
        [(label[one], label[other]) for one, other in links.apart() if one in label and other in label],
        [(one, other, link.wrong) for one, other, link in locate(links.applied) if link.same],
        [(one, other) for one, other, _ in locate(links.find_refused())],
    )

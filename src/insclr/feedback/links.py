"""Must-links and cannot-links, closed under transitivity, with the reasons for every contradiction.

People slip. An answer that was not to be expected is more likely a slip than one that was: where two answers cannot
both be true and the earlier one is the less likely, both are set aside, so that they can be asked for again.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_SLIPS = 0.02  # of the answers of a person who takes care
_SUREST = 0.99  # no expectation is surer than this


@dataclass(frozen=True)
class Link:
    """Two images show the same instance, or different ones, and who says so."""

    one: str
    other: str
    same: bool
    source: str = ""  # the entry of the journal that says it
    # How likely "the same" was before it was said; None: said on purpose, like a name, and never doubted.
    expected: float | None = None

    @property
    def wrong(self) -> float:
        """How likely it is a slip, given what was expected (Bayes' rule)."""
        if self.expected is None:
            return 0.0
        right = min(_SUREST, max(1 - _SUREST, self.expected if self.same else 1 - self.expected))
        slip = (1 - right) * _SLIPS
        return slip / (slip + right * (1 - _SLIPS))


@dataclass(frozen=True)
class Contradiction:
    """A link that cannot be true beside earlier ones, and the chain of those that imply the opposite."""

    link: Link
    chain: tuple[Link, ...]
    set_aside: Link | None = None  # of the chain, with the link itself; None: the earlier ones hold


class Links:
    """Links taken in one by one; one that contradicts those before it is kept apart, not applied."""

    def __init__(self, links: Iterable[Link] = ()) -> None:
        self.contradictions: list[Contradiction] = []
        self._begin()
        for link in links:
            self.add(link)

    def _begin(self) -> None:
        self.applied: list[Link] = []
        self._parent: dict[str, str] = {}
        self._members: dict[str, list[str]] = {}  # of a component, by its root
        self._near: dict[str, list[Link]] = {}  # must-links that were applied, by image
        self._apart: dict[str, dict[str, Link]] = {}  # root: other root: a cannot-link between the two

    def add(self, link: Link) -> Contradiction | None:
        """Apply a link, or keep and give back the contradiction that it makes.

        Where an earlier link is more likely a slip than this one, it is set aside too.
        """
        one, other = self.root(link.one), self.root(link.other)
        if link.same and other in self._apart.get(one, {}):
            between = self._apart[one][other]
            near, far = between.one, between.other
            if self.root(near) != one:
                near, far = far, near
            chain = (*self._path(link.one, near), between, *self._path(far, link.other))
        elif not link.same and one == other:
            chain = self._path(link.one, link.other)
        else:
            self._apply(link, one, other)
            return None
        weakest = max(chain, key=lambda earlier: earlier.wrong, default=link)
        found = Contradiction(link, chain, weakest if weakest.wrong > link.wrong else None)
        self.contradictions.append(found)
        if found.set_aside is not None:
            kept = [earlier for earlier in self.applied if earlier is not weakest]
            self._begin()
            for earlier in kept:
                self._apply(earlier, self.root(earlier.one), self.root(earlier.other))
        return found

    def refused(self) -> list[Link]:
        """Links that were not applied because earlier ones hold."""
        return [one.link for one in self.contradictions if one.set_aside is None]

    def unsettled(self) -> list[Contradiction]:
        """Contradictions that a person should look at: not those that later answers decided."""
        return [
            one
            for one in self.contradictions
            if one.set_aside is None
            or not (self.same(one.link.one, one.link.other) or self.different(one.link.one, one.link.other))
        ]

    def root(self, image: str) -> str:
        """The image that stands for all that show the same instance."""
        if image not in self._parent:
            self._parent[image] = image
            self._members[image] = [image]
        while (above := self._parent[image]) != image:
            self._parent[image] = self._parent[above]
            image = above
        return image

    def same(self, one: str, other: str) -> bool:
        """Whether the links say, directly or through others, that both show one instance."""
        return self.root(one) == self.root(other)

    def different(self, one: str, other: str) -> bool:
        """Whether the links say, directly or through others, that the two show different instances."""
        return self.root(other) in self._apart.get(self.root(one), {})

    def components(self) -> list[list[str]]:
        """Images with feedback, those of one instance together."""
        return list(self._members.values())

    def apart(self) -> list[tuple[str, str]]:
        """Pairs of images, one for every two components that show different instances."""
        return [(one, other) for one, others in self._apart.items() for other in others if one < other]

    def _apply(self, link: Link, one: str, other: str) -> None:
        self.applied.append(link)
        if not link.same:
            self._apart.setdefault(one, {}).setdefault(other, link)
            self._apart.setdefault(other, {}).setdefault(one, link)
            return
        self._near.setdefault(link.one, []).append(link)
        self._near.setdefault(link.other, []).append(link)
        if one == other:
            return
        if len(self._members[one]) < len(self._members[other]):
            one, other = other, one
        self._parent[other] = one
        self._members[one] += self._members.pop(other)
        for third, between in self._apart.pop(other, {}).items():
            del self._apart[third][other]
            self._apart.setdefault(one, {}).setdefault(third, between)
            self._apart[third].setdefault(one, between)

    def _path(self, start: str, end: str) -> tuple[Link, ...]:
        """The fewest must-links that lead from one image to another of its component."""
        came: dict[str, Link | None] = {start: None}
        waiting = deque([start])
        while waiting and end not in came:
            here = waiting.popleft()
            for link in self._near.get(here, []):
                there = link.other if link.one == here else link.one
                if there not in came:
                    came[there] = link
                    waiting.append(there)
        path: list[Link] = []
        while (link_back := came[end]) is not None:
            path.append(link_back)
            end = link_back.one if link_back.other == end else link_back.other
        return tuple(reversed(path))

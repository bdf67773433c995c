"""From what people said about a store's images to screens that ask them, and to groups that a run learns from."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from insclr.arrays import Descriptors, Ids
from insclr.data.decode import BadImage, read_image_bytes
from insclr.data.feedback_groups import FeedbackGroups
from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.errors import UserError
from insclr.feedback.feedback import Feedback, links_to_learn, read_feedback
from insclr.feedback.known import known_places
from insclr.feedback.links import Link
from insclr.feedback.questions import KnownImages, Questions, Screen
from insclr.files import content_hash
from insclr.neighbours.exact import nearest_rows
from insclr.store import Store, open_store

_NEIGHBOURS = 10
_MOST_IMAGES = 10_000  # that are asked about: more would take longer than a person waits, and not ask better
_STRANGERS = 2000  # random pairs whose mean similarity is that of strangers


class Asking:
    """The images of a store, each content once, with the questions that are worth asking about them.

    Of a large collection these are some drawn at random, and all that people spoke about.
    """

    def __init__(self, store: Store, said: Feedback | None = None, most: int = _MOST_IMAGES) -> None:
        said = read_feedback(store) if said is None else said
        by_hash = _some({row.image.hash: row.id for row in store.rows_by_path().values()}, said, most)
        self.hashes = list(by_hash)
        self.place = {image: at for at, image in enumerate(self.hashes)}
        self.ids = np.array(list(by_hash.values()), dtype=np.int64)
        if len(self.ids) < 3:
            raise UserError("There are too few photos to ask about: index at least three.")
        descriptors = store.descriptors(self.ids)  # (N, D)
        self._links = links_to_learn(said)
        # A model that learned from answers finds their pairs alike, which says nothing about others.
        own = [link for link in said.links if said.asked_by.get(link.source) == store.info.fingerprint]
        self.questions = Questions(
            descriptors,
            _neighbours(descriptors),
            self._known(),
            self._answers(own),
            strangers=_strangers(descriptors),
        )
        self._passed_over = {self.place[image] for image in said.skipped if image in self.place}

    def screen(self) -> Screen | None:
        """The screen to show next, its images as places in `hashes` and `ids`."""
        return self.questions.screen(self._passed_over)

    def hear(self, links: Sequence[Link]) -> None:
        """Take in new answers."""
        self.questions.learn(self._answers(links))
        for link in links:
            self._links.add(link)
        self.questions.know(self._known())

    def expected(self, query: str, images: Sequence[str]) -> dict[str, float]:
        """How likely each image shows the same thing as the query, by what they look like alone."""
        here = [image for image in images if image in self.place and query in self.place]
        place = self.place.get(query, 0)
        return {image: self.questions.expected(place, self.place[image]) for image in here}

    def pass_over(self, image: str) -> None:
        """Ask no more about this query."""
        self._passed_over |= {self.place[image]} if image in self.place else set()

    def feedback(self) -> tuple[Ids, NDArray[np.bool_], list[tuple[int, int]]]:
        """Believed groups (N,), which images are of one that people spoke about (N,), and groups apart."""
        groups = self.questions.believed()
        known = self._known()
        told = np.bincount(known.same, minlength=len(groups))[known.same] > 1
        told[[place for pair in known.apart for place in pair]] = True
        has_feedback = np.isin(groups, groups[told])
        apart = {(int(groups[one]), int(groups[other])) for one, other in known.apart}
        return groups, has_feedback, sorted(pair for pair in apart if pair[0] != pair[1])

    def _known(self) -> KnownImages:
        """What the links say of the images here."""
        found = known_places(self._links, self.hashes)
        place = self.place
        return KnownImages(
            found.same,
            found.apart,
            [
                (place[link.one], place[link.other], link.wrong)
                for link in self._links.applied
                if link.same and link.one in place and link.other in place
            ],
            [(one, other) for one, other, _ in self._answers(self._links.refused())],
        )

    def _answers(self, links: Sequence[Link]) -> list[tuple[int, int, bool]]:
        return [
            (self.place[link.one], self.place[link.other], link.same)
            for link in links
            if link.one in self.place and link.other in self.place
        ]


def feedback_groups(uri: str | Path, images: ImageList) -> FeedbackGroups:
    """What the store's people said, about the images of a list; UserError when they said nothing about these."""
    store = open_store(uri)
    try:
        said = read_feedback(store)
        asking = Asking(store, said)
        groups, has_feedback, apart = asking.feedback()
        places = [asking.place.get(one, -1) for one in _hashes(store, images)]
    finally:
        store.close()
    # Images that the store does not know have a group of their own.
    own = iter(range(int(groups.max()) + 1, int(groups.max()) + 1 + len(images)))
    of_image = [int(groups[place]) if place >= 0 else next(own) for place in places]
    told = [bool(has_feedback[place]) if place >= 0 else False for place in places]
    if not any(told):
        raise UserError(
            f"Nobody has said anything yet about these photos in {uri}: answer some questions in "
            f"`insclr serve {uri}`, or name some things, or leave --answers out."
        )
    pairs = torch.tensor(apart, dtype=torch.int64).reshape(-1, 2)
    return FeedbackGroups(torch.tensor(of_image), torch.tensor(told), pairs, str(uri))


def _hashes(store: Store, images: ImageList) -> list[str]:
    """The hash of every image: from the store where the file is as it was indexed, else from its content."""
    rows = {
        os.path.abspath(store.info.root / path): row.image  # noqa: PTH100 (links stay as the user named them)
        for path, row in store.rows_by_path().items()
    }
    found = []
    for i in range(len(images)):
        file = images.file(i)
        row = rows.get(os.path.abspath(file))  # noqa: PTH100
        try:
            state = on_disk(file).stat()
            same = row and (row.size, row.mtime) == (state.st_size, state.st_mtime_ns)
            found.append(row.hash if row and same else content_hash(read_image_bytes(file)))
        except (OSError, BadImage):
            found.append("")
    return found


def _some(by_hash: dict[str, int], said: Feedback, most: int) -> dict[str, int]:
    """So many of the images, the same ones every time; all that people spoke about are among them."""
    if len(by_hash) <= most:
        return by_hash
    has_feedback = {image for link in said.all_links() for image in (link.one, link.other)}
    # By the hashes of their contents: as good as chance, and new photos do not exchange all others.
    chosen = sorted(by_hash, key=lambda image: (image not in has_feedback, image))[
        : max(most, len(has_feedback))
    ]
    return {image: by_hash[image] for image in chosen}


def _strangers(descriptors: Descriptors) -> float:
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, len(descriptors), (_STRANGERS, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return float((descriptors[pairs[:, 0]] * descriptors[pairs[:, 1]]).sum(1).mean())


def _neighbours(descriptors: Descriptors) -> NDArray[np.int64]:
    """The nearest other images of each, as places (N, k)."""
    count = len(descriptors)
    near = nearest_rows(
        torch.from_numpy(descriptors.astype(np.float32)), torch.arange(count), min(_NEIGHBOURS, count - 1)
    )
    return np.asarray(near[1].numpy())

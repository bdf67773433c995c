"""Questions about the images of a store, and the groups that a run learns from."""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from insclr.arrays import Descriptors, Ids
from insclr.data.decode import BadImage, read_image_bytes
from insclr.data.formats import on_disk
from insclr.data.images import ImageList
from insclr.data.tuples import FeedbackGroups
from insclr.errors import UserError
from insclr.feedback.feedback import Feedback, build_links, read_feedback
from insclr.feedback.links import Link, locate_links
from insclr.feedback.questions import Questions, Screen
from insclr.files import content_hash
from insclr.neighbours.exact import nearest_rows
from insclr.store import Store, open_store

_NEIGHBOURS = 10
_MOST_IMAGES = 10_000  # that are asked about: more would take longer than a person waits, and not ask better
_RANDOM_PAIRS = 2000


class Asking:
    """The images of a store, each content once, with the questions that are worth asking about them.

    Of a large collection these are some drawn at random, and all with feedback.
    """

    def __init__(self, store: Store, feedback: Feedback | None = None, most: int = _MOST_IMAGES) -> None:
        feedback = read_feedback(store) if feedback is None else feedback
        by_hash = _choose({row.image.hash: row.id for row in store.rows_by_path().values()}, feedback, most)
        self.hashes = list(by_hash)
        self.place = {image: at for at, image in enumerate(self.hashes)}
        self.ids = np.array(list(by_hash.values()), dtype=np.int64)
        if len(self.ids) < 3:
            raise UserError("There are too few photos to ask about: index at least three.")
        descriptors = store.descriptors(self.ids)  # (N, D)
        self._links = build_links(feedback)
        self._known = locate_links(self._links, self.hashes)
        # A model that learned from answers finds their pairs similar, which is no evidence about others.
        own = [
            link for link in feedback.links if feedback.asked_by.get(link.source) == store.info.fingerprint
        ]
        count = len(descriptors)
        near = nearest_rows(
            torch.from_numpy(descriptors.astype(np.float32)), torch.arange(count), min(_NEIGHBOURS, count - 1)
        )
        self.questions = Questions(
            descriptors,
            near[1].numpy(),
            self._known,
            self._pairs(own),
            random_pair_similarity=_random_pair_similarity(descriptors),
        )
        self._skipped = {self.place[image] for image in feedback.skipped if image in self.place}

    def screen(self) -> Screen | None:
        """The screen to show next, its images as places in `hashes` and `ids`."""
        return self.questions.screen(self._skipped)

    def add_answers(self, links: Sequence[Link]) -> None:
        """Update the questions with new answers."""
        self.questions.fit_curve(self._pairs(links))
        for link in links:
            self._links.add(link)
        self._known = locate_links(self._links, self.hashes)
        self.questions.update(self._known)

    def predict(self, query: str, images: Sequence[str]) -> dict[str, float]:
        """The probability that each image shows the same thing as the query, by descriptors alone."""
        place = self.place
        here = [image for image in images if image in place and query in place]
        return {image: self.questions.predict(place[query], place[image]) for image in here}

    def skip(self, image: str) -> None:
        """Ask no more about this query."""
        if image in self.place:
            self._skipped.add(self.place[image])

    def feedback_groups(self, hashes: Sequence[str], source: str = "") -> FeedbackGroups:
        """Predicted groups of images by their hashes; an image that is not in the store is a group of its own."""
        groups = self.questions.predicted_groups()
        same, apart = self._known.same, self._known.apart
        linked = np.bincount(same, minlength=len(groups))[same] > 1
        linked[[place for pair in apart for place in pair]] = True
        linked = np.isin(groups, groups[linked])
        places = np.array([self.place.get(one, -1) for one in hashes], dtype=np.int64)
        new = groups.max() + 1 + np.arange(len(places))
        pairs = {(int(groups[one]), int(groups[other])) for one, other in apart}
        return FeedbackGroups(
            torch.from_numpy(np.where(places >= 0, groups[places], new)),
            torch.from_numpy((places >= 0) & linked[places]),
            torch.tensor(sorted(pair for pair in pairs if pair[0] != pair[1]), dtype=torch.int64).reshape(
                -1, 2
            ),
            source,
        )

    def _pairs(self, links: Sequence[Link]) -> list[tuple[int, int, bool]]:
        return [
            (self.place[link.one], self.place[link.other], link.same)
            for link in links
            if link.one in self.place and link.other in self.place
        ]


def feedback_groups(uri: str | Path, images: ImageList) -> FeedbackGroups:
    """The feedback of a store about the images of a list; UserError when there is none about these."""
    with closing(open_store(uri)) as store:
        found = Asking(store).feedback_groups(_hashes(store, images), str(uri))
    if not bool(found.has_feedback.any()):
        raise UserError(
            f"There are no names or answers about these photos in {uri} yet: answer some questions in "
            f"`insclr serve {uri}`, or name some things, or leave --answers out."
        )
    return found


def _hashes(store: Store, images: ImageList) -> list[str]:
    """The hash of every image: from the store where the file has not changed since, else from its content."""
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


def _choose(by_hash: dict[str, int], feedback: Feedback, most: int) -> dict[str, int]:
    """At most so many of the images, the same ones every time; all with feedback are among them."""
    if len(by_hash) <= most:
        return by_hash
    linked = {image for link in feedback.all_links() for image in (link.one, link.other)}
    # The order of content hashes is as good as random, and new photos do not exchange all others.
    chosen = sorted(by_hash, key=lambda image: (image not in linked, image))[: max(most, len(linked))]
    return {image: by_hash[image] for image in chosen}


def _random_pair_similarity(descriptors: Descriptors) -> float:
    """The mean similarity of random pairs."""
    pairs: Ids = np.random.default_rng(0).integers(0, len(descriptors), (_RANDOM_PAIRS, 2))
    one, other = pairs[pairs[:, 0] != pairs[:, 1]].T
    return float((descriptors[one] * descriptors[other]).sum(1).mean())

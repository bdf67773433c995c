"""Evaluation with distractors such as R1M: descriptors from a file, read in blocks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from insclr.arrays import Descriptors, Ids, Scores
from insclr.data.images import ImageList, list_images
from insclr.describe.descriptor_file import descriptor_blocks
from insclr.errors import UserError

_ROWS = 2**16  # descriptors of a file held at once: 128 MiB of 512 numbers
SCORES_IN_MEMORY = 2**24  # scores held at once

Blocks = Callable[[ImageList], Iterator[Descriptors]]  # the descriptors of images, some at a time


@dataclass(frozen=True)
class Distractors:
    """Unit descriptors that are found in blocks, any number of times."""

    blocks: Callable[[], Iterator[Descriptors]]
    images: ImageList | None = None  # what they are described from, where they are not in a file

    @classmethod
    def of(cls, rows: Descriptors) -> "Distractors":
        """Descriptors that are in memory."""
        return cls(lambda: iter((rows,)))


def read_distractors(source: Path, describe: Blocks) -> Distractors:
    """Distractors from .npy, from a descriptor file of `insclr embed` (.npz, .parquet), or from images.

    The images of a folder, or of a .txt or .csv list, are described as they are needed; unreadable ones are left out.
    """
    if source.is_dir() or source.suffix in (".txt", ".csv"):
        images = list_images(source)
        return Distractors(lambda: (block[block.any(axis=1)] for block in describe(images)), images)
    if source.suffix != ".npy":
        next(descriptor_blocks(source, _ROWS), None)  # reports a damaged file before anything is described
        return Distractors(lambda: descriptor_blocks(source, _ROWS))
    try:
        rows = np.load(source, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{source}: not a readable .npy array ({error}).") from error
    if rows.ndim != 2:
        raise UserError(f"{source}: an array of shape {rows.shape}; expected one row for each distractor.")
    starts = range(0, len(rows), _ROWS)
    return Distractors(lambda: (np.asarray(rows[start : start + _ROWS], np.float32) for start in starts))


@dataclass(frozen=True)
class RankedAmongDistractors:
    """The ranking of a database in which distractors stand too, as -1; a row is made when it is read."""

    ids: Ids  # (queries, results) database rows, best first
    ranks: Ids  # (queries, results) where they stand among the distractors
    depth: int | None  # results that the metric reads

    def __iter__(self) -> Iterator[Ids]:
        for ids, ranks in zip(self.ids, self.ranks, strict=True):
            row = np.full(int(ranks[-1]) + 1 if len(ranks) else 0, -1, dtype=np.int64)
            row[ranks] = ids
            yield row[: self.depth]


def rank_among(
    queries: Descriptors, ids: Ids, scores: Scores, distractors: Distractors, depth: int | None
) -> tuple[RankedAmongDistractors, int]:
    """Put distractors into a ranking of the database, with its scores; also how many there are.

    As in any ranking, equal scores are settled by the lower row, and the distractors lie behind the database.
    """
    ahead = np.zeros(scores.shape, dtype=np.int64)  # distractors before each result
    step = max(1, SCORES_IN_MEMORY // max(1, len(queries)))
    count = 0
    for block in distractors.blocks():
        if block.shape[1] != queries.shape[1]:
            raise UserError(
                f"The distractors have {block.shape[1]} dimensions, the model's descriptors {queries.shape[1]}: "
                "describe the distractors with the same model."
            )
        if not np.isfinite(block).all():
            raise UserError("the distractors hold values that are not finite: describe them again.")
        count += len(block)
        for start in range(0, len(block), step):
            found = np.sort(queries @ block[start : start + step].T, axis=1)  # (queries, distractors)
            for query, (one, of_query) in enumerate(zip(found, scores, strict=True)):
                ahead[query] += len(one) - np.searchsorted(one, of_query, side="right")
    ranks = ahead + np.arange(scores.shape[1])
    return RankedAmongDistractors(ids, ranks, depth), count

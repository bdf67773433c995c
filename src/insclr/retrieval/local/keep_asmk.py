"""Bring the aggregated local descriptors beside a store up to date with its rows, and search by them."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
from PIL import Image

from insclr.arrays import Ids, Scores
from insclr.data.decode import BadImage, decode
from insclr.describe.cells import Cells
from insclr.errors import UserError
from insclr.progress import progress_bar
from insclr.retrieval.local.asmk import QUERY_WORDS, Aggregated, Codebook, InvertedFile, learn_codebook
from insclr.retrieval.local.keep import image_contents
from insclr.retrieval.local.local_feature_database import LocalFeatureDatabase
from insclr.store import Row, Store

CellsOf = Callable[[Sequence[Image.Image]], list[Cells]]

SAMPLE = 1000  # images that a vocabulary is learned from
_PART = 32  # images described at once
_NOTE = "asmk"
_MADE = "asmk-made"  # random, and another one after every run: what was read before its end may be a part
_STORES = 2  # whose inverted files are held at once: the page compares two
_OUTGROWN = 2.0  # times the images it was learned for: then the vocabulary is learned anew


def keep_asmk(store: Store, kept: LocalFeatureDatabase, cells_of: CellsOf, longest: int) -> None:
    """Aggregate the local descriptors of every row that has none kept.

    The first run learns the vocabulary from a sample of the collection; later ones use it, until the collection has
    twice as many images: then all are aggregated anew.
    """
    rows = {row.image.hash: row for row in store.rows_by_path().values()}
    known = kept.note(_NOTE)
    codebook = None if known is None else Codebook.from_bytes(known)
    if codebook is None or len(rows) > _OUTGROWN * codebook.images:
        chosen = np.random.default_rng(0).permutation(sorted(rows))[:SAMPLE].tolist()
        sample = [rows[one] for one in chosen]
        seen = {
            row.image.hash: cells.descriptors
            for row, cells in _cells(store, sample, cells_of, longest, "vocabulary")
        }
        nothing = np.zeros((0, 0), np.float32)
        codebook = learn_codebook(np.concatenate(list(seen.values()) or [nothing]), len(rows))
        kept.clear("asmk")
        kept.set_note(_NOTE, codebook.to_bytes())
        kept.write("asmk", {content: codebook.aggregate(one).to_bytes() for content, one in seen.items()})
    there = kept.hashes("asmk")
    wanted = [row for content, row in rows.items() if content not in there]
    part: dict[str, bytes] = {}
    for row, cells in _cells(store, wanted, cells_of, longest, "local descriptors"):
        part[row.image.hash] = codebook.aggregate(cells.descriptors).to_bytes()
        if len(part) >= _PART:
            kept.write("asmk", part)
            part = {}
    kept.write("asmk", part)
    kept.set_note(_MADE, secrets.token_bytes(8))


def _cells(
    store: Store, rows: Sequence[Row], cells_of: CellsOf, longest: int, title: str
) -> Iterator[tuple[Row, Cells]]:
    with progress_bar(title, len(rows)) as bar:
        for start in range(0, len(rows), _PART):
            part = list(rows[start : start + _PART])
            readable: list[tuple[Row, Image.Image]] = []
            for row, content in image_contents(store, part):
                try:
                    readable.append((row, decode(content, longest)))
                except BadImage:
                    continue
            if readable:
                found = cells_of([image for _, image in readable])
                yield from zip((row for row, _ in readable), found, strict=True)
            bar.advance(len(part))


class _Loaded(NamedTuple):
    of: tuple[str, bytes]  # the version of the rows and the note of the last `keep_asmk`
    ids: Ids
    file: InvertedFile


class AsmkSearch:
    """The inverted files of stores in memory, read again when rows or what is kept of them have changed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loaded: dict[str, _Loaded] = {}  # by the store's address, the last one used last

    def scores(self, store: Store, queries: Sequence[Cells]) -> tuple[Ids, Scores]:
        """Ids of the rows that have aggregated descriptors, and the mean similarity of the queries with them."""
        kept = LocalFeatureDatabase(store.parts)
        try:
            with self._lock:
                of = store.version(), kept.note(_MADE) or b""
                loaded = self._loaded.pop(store.uri, None)
                if loaded is None or loaded.of != of:
                    loaded = _load(store, kept, of)
                self._loaded[store.uri] = loaded
                if len(self._loaded) > _STORES:
                    del self._loaded[next(iter(self._loaded))]
        finally:
            kept.close()
        aggregated = [loaded.file.codebook.aggregate(one.descriptors, QUERY_WORDS) for one in queries]
        return loaded.ids, np.mean([loaded.file.scores(one) for one in aggregated], axis=0).astype(np.float32)


def _load(store: Store, kept: LocalFeatureDatabase, of: tuple[str, bytes]) -> _Loaded:
    known = kept.note(_NOTE)
    found = {content: Aggregated.from_bytes(one) for content, one in kept.every("asmk")}
    if known is None or not found:
        raise UserError(
            f"the store {store.uri} has no local descriptors: make them with `insclr index MODEL IMAGES --store "
            f"{store.uri} --asmk`, or search without --ranking asmk"
        )
    rows = [row for row in store.rows_by_path().values() if row.image.hash in found]
    ids = np.array([row.id for row in rows], dtype=np.int64)
    return _Loaded(of, ids, InvertedFile(Codebook.from_bytes(known), [found[row.image.hash] for row in rows]))

"""Bring the local features beside a store up to date with its rows."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from insclr.data.decode import BadImage, decode, read_image_bytes
from insclr.data.workers import default_workers
from insclr.files import content_hash
from insclr.progress import progress_bar
from insclr.retrieval.local.extractor import Extractor
from insclr.retrieval.local.features import LONGEST, require_opencv
from insclr.retrieval.local.local_feature_database import TABLES, LocalFeatureDatabase
from insclr.store import Row, Store

_log = logging.getLogger(__name__)
_PART = 64  # images written at once


def keep_features(store: Store, kept: LocalFeatureDatabase, extractor: Extractor) -> None:
    """Extract the local features of every row that has none.

    A file that has changed since it was indexed, or cannot be read, has none until the next `insclr index`.
    """
    cv2 = require_opencv()
    cv2.setNumThreads(1)  # images are shared out to threads, not the work on one
    known = kept.hashes(extractor.table)
    wanted = {row.image.hash: row for row in store.rows_by_path().values() if row.image.hash not in known}
    with ThreadPoolExecutor(default_workers()) as pool, progress_bar("local features", len(wanted)) as bar:
        for start in range(0, len(wanted), _PART):
            part = list(wanted.values())[start : start + _PART]
            found = pool.map(lambda row: _features(store, row, extractor), part)
            made = {row.image.hash: one for row, one in zip(part, found, strict=True) if one is not None}
            kept.write(extractor.table, made)
            bar.advance(len(part))


def drop_gone(store: Store, kept: LocalFeatureDatabase) -> None:
    """Forget what is kept of images that are no longer in the store."""
    there = {row.image.hash for row in store.rows_by_path().values()}
    kept.drop(set[str]().union(*map(kept.hashes, TABLES)) - there)


def image_contents(store: Store, rows: list[Row]) -> Iterator[tuple[Row, bytes]]:
    """The rows whose files still hold what was indexed, with their content."""
    for row in rows:
        try:
            content = read_image_bytes(store.info.root / row.image.path)
        except BadImage as bad:
            _log.debug("%s: %s", row.image.path, bad.reason)
            continue
        if content_hash(content) == row.image.hash:
            yield row, content


def _features(store: Store, row: Row, extractor: Extractor) -> bytes | None:
    for _, content in image_contents(store, [row]):
        try:
            return extractor.extract(decode(content, LONGEST)).to_bytes()
        except BadImage as bad:
            _log.debug("%s: %s", row.image.path, bad.reason)
    return None

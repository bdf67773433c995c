"""Extractors of local features: SIFT, or a learned network with weights of the user.

All local features of a store come from one extractor, which the store records. Queries use the same extractor.
"""

import json
import logging
from typing import Protocol

from PIL import Image

from insclr.data.decode import Box
from insclr.errors import UserError
from insclr.retrieval.local.features import LocalFeatures, extract_features, require_opencv
from insclr.retrieval.local.geometry import Pairs, match_features
from insclr.retrieval.local.local_feature_database import LocalFeatureDatabase
from insclr.store import Store

_log = logging.getLogger(__name__)
_NOTE = "extractor"
_LOCAL_TABLES = ("sift", "learned")


class Extractor(Protocol):
    """Finds points in images, and matches the points of two images."""

    table: str  # table of its features
    fingerprint: str  # of its weights: features of different fingerprints cannot be compared
    note: bytes  # what a store records to open it again

    def extract(self, image: Image.Image, box: Box | None = None) -> LocalFeatures:
        """The strongest points of an image, or of the part of it inside a box."""

    def match(self, query: LocalFeatures, found: LocalFeatures) -> Pairs:
        """Pairs of points that look alike."""


class Sift:
    """SIFT points, matched by their descriptors."""

    table = "sift"
    fingerprint = "sift"
    note = b""

    def extract(self, image: Image.Image, box: Box | None = None) -> LocalFeatures:
        """The strongest points of an image, or of the part of it inside a box."""
        return extract_features(image, box)

    def match(self, query: LocalFeatures, found: LocalFeatures) -> Pairs:
        """Pairs of points that are each other's nearest, clearly nearer than the second nearest."""
        return match_features(query, found)


SIFT: Extractor = Sift()


def open_extractor(name: str, matcher: str = "") -> Extractor | None:
    """The extractor that a user names: "sift", or a file with the weights of DISK; None for an empty name.

    `matcher` is a file with the weights of LightGlue. UserError for a file that holds neither.
    """
    if name in ("", "sift"):
        if matcher:
            raise UserError("--local-matcher goes with --local-features FILE: SIFT has a matcher of its own.")
        return SIFT if name else None
    from insclr.retrieval.local.learned import open_learned

    return open_learned(name, matcher)


def kept_extractor(kept: LocalFeatureDatabase) -> Extractor:
    """The extractor of the local features of a store; UserError when its weights are missing or changed."""
    note = _read_note(kept)
    if note is None:
        return SIFT
    from insclr.retrieval.local.learned import reopen_learned

    return reopen_learned(**note)


def store_extractor(store: Store) -> Extractor:
    """The extractor of a store's local features."""
    kept = LocalFeatureDatabase(store.parts)
    try:
        return kept_extractor(kept)
    finally:
        kept.close()


def has_local_features(kept: LocalFeatureDatabase) -> bool:
    """Whether local features are stored, or were requested."""
    return kept.note(_NOTE) is not None or bool(kept.hashes(SIFT.table))


def choose_extractor(kept: LocalFeatureDatabase, wanted: Extractor | None) -> Extractor:
    """The extractor to use: the wanted one, else the one of the stored features.

    When the extractor changes, the stored features are deleted and extracted again.
    """
    require_opencv()
    if wanted is None:
        return kept_extractor(kept)
    if not is_of(kept, wanted):
        if has_local_features(kept):
            _log.warning("the stored local features were made by another extractor: they are extracted again")
        kept.restart(_LOCAL_TABLES, _NOTE, wanted.note)
    elif wanted.note and wanted.note != kept.note(_NOTE):
        kept.set_note(_NOTE, wanted.note)  # the same weights in another place, or another matcher
    return wanted


def read_features(
    kept: LocalFeatureDatabase, extractor: Extractor, hashes: list[str]
) -> dict[str, LocalFeatures]:
    """The stored features of these images by this extractor; images without features are left out."""
    if not is_of(kept, extractor):
        return {}
    learned = extractor.table != SIFT.table
    found = kept.read(extractor.table, hashes)
    try:
        return {one: LocalFeatures.from_bytes(content, learned=learned) for one, content in found.items()}
    except ValueError as error:
        raise kept.report_damage() from error


def is_of(kept: LocalFeatureDatabase, extractor: Extractor) -> bool:
    """Whether the stored features were made by this extractor."""
    note = _read_note(kept)
    return extractor.fingerprint == (SIFT.fingerprint if note is None else note["fingerprint"])


def _read_note(kept: LocalFeatureDatabase) -> dict[str, str] | None:
    """The record of the extractor that made the stored features; None for SIFT."""
    note = kept.note(_NOTE)
    if note is None:
        return None
    try:
        found = json.loads(note)
        return {name: str(found[name]) for name in ("fingerprint", "weights", "matcher")}
    except (ValueError, TypeError, KeyError) as error:
        raise kept.report_damage() from error

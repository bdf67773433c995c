"""A query of a search: an image, or a part of one, from a file, from memory, from a row of a store or an upload."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from insclr.arrays import Descriptors
from insclr.data.decode import BadImage, Box, decode, read_image_bytes
from insclr.data.given import Photo, as_rgb
from insclr.describe.describer import Describer
from insclr.engine.choose import EngineOptions
from insclr.engine.opened import open_model
from insclr.errors import UserError
from insclr.files import content_hash
from insclr.retrieval.local_database import LocalFeatureDatabase
from insclr.retrieval.local_features import LONGEST, LocalFeatures, extract_features
from insclr.store import Row, Store, StoreInfo


class UnreadableQuery(UserError):
    """An image to search for that cannot be read, and the reason."""

    def __init__(self, image: object, reason: str) -> None:
        super().__init__(f"{image} cannot be searched for: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class Query:
    """An image to search for, or the part of it inside a box.

    `decode(longest)` gives the image and the box in its pixels; its longest side is at least `longest`, as far as the
    image has as many pixels.
    """

    decode: Callable[[int], tuple[Image.Image, Box | None]]
    hash: str = ""  # of the file's content; empty for a part of an image and for an image in memory
    stored: tuple[Store, Row] | None = None  # the row that it is, where the whole image is meant
    part_of: tuple[Store, Row] | None = None  # the row that it is a part of

    def descriptor(self, store: Store, describer: Describer, *, own_size: bool = False) -> Descriptors:
        """The unit descriptor (1, dim) to search the store with; a row of the store itself needs no network."""
        if self.stored is not None and self.stored[0] is store:
            row = self.stored[1]
            try:
                return store.descriptors([row.id])
            except KeyError:
                raise UnreadableQuery(row.image.path, "it is no longer in the store") from None
        image, box = self.decode(describer.longest)
        return describer.images([image], [box], own_size=own_size)

    def local_features(self) -> LocalFeatures:
        """The local features to verify results with; those kept of a row need no decoding."""
        if self.stored is not None:
            store, row = self.stored
            with closing(LocalFeatureDatabase(store.parts)) as kept:
                features = kept.read([row.image.hash]).get(row.image.hash)
            if features is not None:
                return features
        image, box = self.decode(LONGEST)
        return extract_features(image, box)


def image_query(image: Photo, box: Box | None = None) -> Query:
    """An image file, read once, or an image in memory; `box` is in pixels. UnreadableQuery where there is no file."""
    if isinstance(image, Image.Image | np.ndarray):
        picture = as_rgb(image)
        return Query(lambda _: (picture, box))
    try:
        content = read_image_bytes(Path(image))
    except BadImage as bad:
        raise UnreadableQuery(image, bad.reason) from bad

    def decode_content(longest: int) -> tuple[Image.Image, Box | None]:
        try:
            return decode(content, None if box else longest), box
        except BadImage as bad:
            raise UnreadableQuery(image, bad.reason) from bad

    return Query(decode_content, "" if box else content_hash(content))


def describer_of(
    info: StoreInfo,
    model: str = "",
    workers: int = -1,
    device: str = "auto",
    engine: str = "auto",
    streams: int = 1,
    expected: int = 0,
) -> Describer:
    """The describer for queries to a store: its own model, or `model` where that has moved.

    `streams` queries are described at a time, `expected` in all (0: unknown).
    """
    name, options = model or info.model, EngineOptions(engine, device, streams, expected)
    opened = open_model(name, options)
    info.refuse_other_model(opened.fingerprint, "searched here")
    return Describer(name, opened, workers, info.size)

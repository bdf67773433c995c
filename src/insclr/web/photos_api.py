"""The API of single photos: list them all, name those that were chosen, take them out of things, download them."""

import itertools
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Literal, cast

import numpy as np
from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from insclr.data.images import natural_key
from insclr.feedback.entries import answer
from insclr.feedback.names import Gallery, ShownThing, name_photos, take_out_photos
from insclr.retrieval.score import DISPLAY_THRESHOLD, LIKELY, SURE, score_curve_of
from insclr.store import Row
from insclr.store.where import meets, parse_where
from insclr.web.answers import PictureAnswer, open_original, picture_answer
from insclr.web.api import ERRORS, WRITE_ERRORS, Offer, StoreNumber
from insclr.web.served import Refused, ServedStore
from insclr.web.things_api import (
    ID_PATTERN,
    ChosenPhotos,
    Done,
    Name,
    Ref,
    ThingAnswer,
    ThingPage,
    row_of,
    thing_answer,
    thing_page_answer,
)

photos_api = APIRouter(prefix="/api/stores/{store}/photos")
_COMPARED = 8  # photos of a thing that chosen photos are compared with
_MOST_THINGS = 300
_CHUNK = 256 * 1024  # bytes

_FITS = ((SURE, "Sure"), (LIKELY, "Likely"), (DISPLAY_THRESHOLD, "Possible"), (0.0, "Unlikely"))

Show = Literal["all", "named", "unnamed", "by-score", "new"]
Order = Literal["path", "newest", "oldest", "thing", "fit"]


class PhotoAnswer(PictureAnswer):
    """A photo with the thing that it shows."""

    thing_id: str = Field(description="the thing that it is in; empty for a photo that matches nothing")
    by: Literal["person", "score", ""] = Field(
        description="who put it there; empty for a thing without feedback"
    )
    fit: float | None = Field(
        None, description="how likely it shows that thing, 0 to 1; given where the list is by it"
    )


class Heading(BaseModel):
    """Where photos of a month, a folder or a thing begin in the list."""

    title: str
    offset: int


class PhotoList(BaseModel):
    """Photos of a store in an order."""

    fingerprint: str
    photos: list[PhotoAnswer]
    total: int
    headings: list[Heading] = Field(
        description="the timeline of the whole list; folders or things by other orders"
    )


class NamedPhotos(ChosenPhotos):
    """Photos that show a thing: one that is there, one of this name, or a new one."""

    thing: str = Field("", pattern=f"{ID_PATTERN}|^$")
    name: Name = ""


class DifferentPhotos(ChosenPhotos):
    """Photos that show other things than the photo that was searched for."""

    query: Ref


class LikelyThing(ThingAnswer):
    """A thing that chosen photos may show."""

    score: float = Field(description="how likely they show it: of the best pair of photos")


@dataclass(frozen=True)
class _Wanted:
    """Which photos are listed, and how."""

    show: Show = "all"
    order: Order = "path"
    where: Annotated[str, Query(max_length=2000)] = ""
    count: Annotated[int, Query(ge=1, le=500)] = 120
    offset: Annotated[int, Query(ge=0, le=10**8)] = 0
    fit_from: Annotated[float, Query(ge=0, le=1, description="at least this likely to show their thing")] = 0
    fit_to: Annotated[float, Query(ge=0, le=1, description="less likely than this; 1: all")] = 1

    @property
    def by_fit(self) -> bool:
        """Whether the list depends on how likely photos show their thing."""
        return self.order == "fit" or self.fit_from > 0 or self.fit_to < 1


@photos_api.get("", responses=ERRORS)
def photos(served: Offer, store: StoreNumber, wanted: Annotated[_Wanted, Depends()]) -> PhotoList:
    """All photos of a store, or those that a filter leaves."""
    home = served.store(store)
    gallery = home.feedback.gallery()
    fits = home.feedback.fits() if wanted.by_fit else {}
    found = _list(home, gallery, wanted, fits)
    shown = found[wanted.offset : wanted.offset + wanted.count]
    root = served.settings.root_path
    return PhotoList(
        fingerprint=home.store.info.fingerprint,
        photos=[_photo(store, row, gallery, root, fits.get(row.id)) for row in shown],
        total=len(found),
        headings=_headings(found, gallery, wanted.order, fits),
    )


@photos_api.get("/{row}/thing", responses=ERRORS)
def thing_of_photo(
    served: Offer, store: StoreNumber, row: Annotated[int, Field(ge=0, le=2**63 - 1)]
) -> ThingPage:
    """The thing that a photo is in."""
    home = served.store(store)
    thing = home.feedback.gallery().thing_of.get(home.row(row).id)
    if thing is None:
        raise Refused(404, "this photo is in no thing yet")
    return thing_page_answer(served, store, thing)


@photos_api.post("/things", responses=WRITE_ERRORS)
def likely_things(
    served: Offer, store: StoreNumber, body: ChosenPhotos, unnamed: bool = False
) -> list[LikelyThing]:
    """Things that chosen photos may show, the likeliest first: named ones, on request others too."""
    home = served.store(store)
    home.require_shown(body.fingerprint)
    chosen = [row_of(served, home, ref).id for ref in body.refs]
    things = [one for one in home.feedback.gallery().things if one.name or unnamed]
    scored = sorted(zip(_likeness(home, chosen, things), things, strict=True), key=lambda one: -one[0])
    return [
        LikelyThing(**thing_answer(served, store, thing).model_dump(), score=round(score, 3))
        for score, thing in scored[:_MOST_THINGS]
    ]


@photos_api.post("/name", responses=WRITE_ERRORS)
def name_chosen(served: Offer, store: StoreNumber, body: NamedPhotos) -> Done:
    """Put photos into a thing: the one of this id, else the one of this name, else a new one."""
    home = served.store(store)
    act = name_photos(home.feedback.gallery(), _rows(served, home, body), body.name, body.thing)
    home.feedback.append(act.entries)
    return Done(id=act.thing, message=act.message)


@photos_api.post("/different", responses=WRITE_ERRORS)
def tell_apart(served: Offer, store: StoreNumber, body: DifferentPhotos) -> Done:
    """Keep that photos show other things than a photo that was searched for: they leave its results."""
    home = served.store(store)
    query = row_of(served, home, body.query).image.hash
    images = [row.image.hash for row in _rows(served, home, body)]
    if query in images:
        raise Refused(422, "a photo cannot differ from itself")
    home.feedback.append([answer(query, [], images, body.fingerprint)])
    return Done(id="", message=f"{len(images)} marked as something else")


@photos_api.post("/remove", responses=WRITE_ERRORS)
def remove_chosen(served: Offer, store: StoreNumber, body: ChosenPhotos) -> Done:
    """Take photos out of the things that they are in."""
    home = served.store(store)
    act = take_out_photos(home.feedback.gallery(), _rows(served, home, body))
    home.feedback.append(act.entries)
    return Done(id=act.thing, message=act.message)


@photos_api.post("/zip", responses=WRITE_ERRORS, response_class=StreamingResponse)
def download(served: Offer, store: StoreNumber, body: ChosenPhotos) -> StreamingResponse:
    """The files of photos as a ZIP."""
    if not served.settings.originals:
        raise Refused(403, "this server does not give the original files")
    home = served.store(store)
    rows = _rows(served, home, body)
    return StreamingResponse(
        _write_zip(home, rows),
        media_type="application/zip",
        headers={
            "content-disposition": 'attachment; filename="photos.zip"',
            "cache-control": "private, no-store",
        },
    )


def _rows(served: Offer, home: ServedStore, body: ChosenPhotos) -> list[Row]:
    home.require_shown(body.fingerprint)
    return [row_of(served, home, ref) for ref in dict.fromkeys(body.refs)]


def _photo(store: int, row: Row, gallery: Gallery, root: str, fit: float | None) -> PhotoAnswer:
    thing = gallery.thing_of.get(row.id)
    by: Literal["person", "score", ""] = ""
    if thing is not None and thing.has_feedback:
        by = "person" if row.image.hash in thing.confirmed else "score"
    answer = picture_answer(store, row, root, thing.name if thing else "")
    return PhotoAnswer(**answer.model_dump(), thing_id=thing.id if thing else "", by=by, fit=fit)


def _list(home: ServedStore, gallery: Gallery, wanted: _Wanted, fits: Mapping[int, float]) -> list[Row]:
    """The rows that are wanted, in their order."""
    condition = parse_where(wanted.where, home.store.columns())
    most = wanted.fit_to if wanted.fit_to < 1 else 2.0
    kept = []
    for row in itertools.chain(gallery.alone, *(thing.rows for thing in gallery.things)):
        thing = gallery.thing_of.get(row.id)
        is_shown = {
            "all": True,
            "named": bool(thing and thing.name),
            "unnamed": not (thing and thing.name),
            "by-score": bool(thing and thing.has_feedback and row.image.hash not in thing.confirmed),
            "new": thing is None,
        }[wanted.show]
        if wanted.by_fit:  # photos in no thing have none
            is_shown = is_shown and row.id in fits and wanted.fit_from <= fits[row.id] < most
        if is_shown and (condition is None or meets(condition, row.image.path, row.image.columns)):
            kept.append(row)
    kept.sort(key=lambda row: natural_key(row.image.path))
    if wanted.order == "fit":
        kept.sort(key=lambda row: fits[row.id])
    if wanted.order in ("newest", "oldest"):
        dated = [row for row in kept if taken_of(row)]
        dated.sort(key=taken_of, reverse=wanted.order == "newest")
        return [*dated, *(row for row in kept if not taken_of(row))]
    if wanted.order == "thing":
        kept.sort(key=lambda row: _thing_title(row, gallery).casefold() or "\U0010ffff")
    return kept


def taken_of(row: Row) -> str:
    """When a photo was taken, as text that sorts; empty where the file does not hold it."""
    return row.image.columns.get("taken", "")


def _thing_title(row: Row, gallery: Gallery) -> str:
    thing = gallery.thing_of.get(row.id)
    return thing.name if thing else ""


def _headings(
    rows: Sequence[Row], gallery: Gallery, order: Order, fits: Mapping[int, float]
) -> list[Heading]:
    def title(row: Row) -> str:
        if order == "thing":
            return _thing_title(row, gallery) or "no name yet"
        if order == "fit":
            return next(name for least, name in _FITS if fits[row.id] >= least)
        if order == "path":
            return row.image.path.rpartition("/")[0] or "top folder"
        return taken_of(row)[:7] or "no date"

    found: list[Heading] = []
    for at, row in enumerate(rows):
        if not found or found[-1].title != title(row):
            found.append(Heading(title=title(row), offset=at))
    return found[:1000]


def _likeness(home: ServedStore, chosen: Sequence[int], things: Sequence[ShownThing]) -> list[float]:
    """For each thing the score of the most similar pair of a chosen photo and one of its central photos."""
    if not things:
        return []
    parts = [[row.id for row in thing.rows[:_COMPARED]] for thing in things]
    similar = home.store.descriptors(chosen) @ home.store.descriptors(list(itertools.chain(*parts))).T
    ends = np.cumsum([len(one) for one in parts])[:-1]
    best = [part.max() for part in np.split(similar.max(0), ends)]
    return [float(one) for one in score_curve_of(home.store).score(np.array(best, dtype=np.float32))]


class _Pieces:
    """A file to write a ZIP to, whose content is taken piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        """Keep a piece until it is taken."""
        self._pieces.append(bytes(piece))
        return len(piece)

    def flush(self) -> None:
        """Nothing waits."""

    def take(self) -> bytes:
        """What was written since."""
        found, self._pieces = b"".join(self._pieces), []
        return found


def _write_zip(home: ServedStore, rows: Sequence[Row]) -> Iterator[bytes]:
    """A ZIP of the files as they are; one that is gone or changed is left out and listed in `missing.txt`."""
    pieces, missing = _Pieces(), []
    with zipfile.ZipFile(cast("IO[bytes]", pieces), "w", zipfile.ZIP_STORED) as archive:
        for row in rows:
            inside = PurePosixPath(*(part for part in Path(row.image.path).parts if part not in ("/", "..")))
            try:
                opened, _ = open_original(home.file(row), row.image.hash)
            except Refused as refused:
                missing.append(f"{row.image.path}: {refused.detail}")
                continue
            with opened, archive.open(str(inside), "w", force_zip64=True) as target:
                while chunk := opened.read(_CHUNK):
                    target.write(chunk)
                    yield pieces.take()
        if missing:
            archive.writestr("missing.txt", "\n".join(missing) + "\n")
    yield pieces.take()

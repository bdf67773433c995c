"""The API of the gallery: things, their names, and what people correct."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from insclr.feedback.entries import (
    MAX_NAME,
    describe_act,
    find_act,
    hide_thing,
    merge_things,
    name_thing,
    new_thing_id,
    remove_images,
    undo,
)
from insclr.feedback.things import ShownThing, assign_permanent_id, hashes_of
from insclr.web.answers import PictureAnswer, Shown, picture_answer
from insclr.web.api import SAYS, WRITE_SAYS, Offer, StoreNumber
from insclr.web.queries import parse_row
from insclr.web.served import Refused, Served, ServedStore

things_api = APIRouter(prefix="/api/stores/{store}")
ThingId = Annotated[str, Path(pattern=r"^(thing|group)-[0-9a-f]{4,64}$", description="id of a thing")]
_COVERS = 4
_MOST_SHOWN = 1000  # photos of a thing's page

Ref = Annotated[str, Field(max_length=24)]


class Named(BaseModel):
    """A new name."""

    name: str = Field(max_length=4 * MAX_NAME)


class Chosen(Shown):
    """Photos of a thing."""

    refs: list[Ref] = Field(min_length=1, max_length=500)


class Parted(Chosen):
    """Photos that are a thing of their own."""

    name: str = Field("", max_length=4 * MAX_NAME)


class Joined(BaseModel):
    """The thing that another one is."""

    into: str = Field(pattern=r"^(thing|group)-[0-9a-f]{4,64}$")


class Hidden(BaseModel):
    """Whether the gallery leaves a thing out."""

    hidden: bool = True


class Undone(BaseModel):
    """What to take back: an entry, or the last one."""

    entry: str = Field("", max_length=64)


class ThingAnswer(BaseModel):
    """A thing in the gallery."""

    id: str
    name: str
    photos: int
    said: int = Field(description="photos that people put here; the others joined by their score")
    uncertain: bool = Field(description="may be several things")
    hidden: bool
    covers: list[PictureAnswer]


class GalleryAnswer(BaseModel):
    """Things, the largest first."""

    things: list[ThingAnswer]
    total: int
    alone: int = Field(description="photos that match nothing: new things, or the only photo of one")
    undo: str = Field(description="what the next undo takes back; empty where there is nothing")


class ThingPicture(PictureAnswer):
    """A photo of a thing."""

    said: bool = Field(description="a person put it here; else it joined by its score")


class ThingPage(ThingAnswer, Shown):
    """A thing with its photos, the most typical first."""

    pictures: list[ThingPicture]


class Done(BaseModel):
    """What was done, and the id that the thing has now."""

    id: str
    said: str


@things_api.get("/things", responses=SAYS)
def things(
    served: Offer,
    store: StoreNumber,
    count: Annotated[int, Query(ge=1, le=200)] = 60,
    offset: Annotated[int, Query(ge=0, le=10**7)] = 0,
    hidden: bool = False,
) -> GalleryAnswer:
    """The things of a store: groups of photos, corrected and named by people."""
    home = served.store(store)
    found = home.feedback.gallery()
    shown = [one for one in found.things if hidden or not one.hidden]
    entries = home.feedback.read().entries
    return GalleryAnswer(
        things=[_thing(served, store, one) for one in shown[offset : offset + count]],
        total=len(shown),
        alone=len(found.alone),
        undo=describe_act(find_act(entries[-1], entries)) if entries else "",
    )


@things_api.get("/things/alone", responses=SAYS)
def alone(
    served: Offer, store: StoreNumber, count: Annotated[int, Query(ge=1, le=200)] = 60
) -> list[PictureAnswer]:
    """Photos that match nothing."""
    rows = served.store(store).feedback.gallery().alone[:count]
    return [picture_answer(store, row, served.settings.root_path) for row in rows]


@things_api.get("/things/{thing}", responses=SAYS)
def thing_page(served: Offer, store: StoreNumber, thing: ThingId) -> ThingPage:
    """A thing with its photos."""
    home, found = _found(served, store, thing)
    root = served.settings.root_path
    pictures = [
        ThingPicture(
            **picture_answer(store, row, root, found.name).model_dump(),
            said=row.image.hash in found.confirmed,
        )
        for row in found.rows[:_MOST_SHOWN]
    ]
    return ThingPage(
        fingerprint=home.store.info.fingerprint,
        **_thing(served, store, found).model_dump(),
        pictures=pictures,
    )


@things_api.post("/things/{thing}/name", responses=WRITE_SAYS)
def name(served: Offer, store: StoreNumber, thing: ThingId, body: Named) -> Done:
    """Give a thing a name."""
    home, found = _found(served, store, thing)
    id_, entries = assign_permanent_id(found, body.name)
    home.feedback.append(entries or name_thing(id_, body.name, []))
    return Done(id=id_, said="named")


@things_api.post("/things/{thing}/remove", responses=WRITE_SAYS)
def remove(served: Offer, store: StoreNumber, thing: ThingId, body: Chosen) -> Done:
    """Take photos out of a thing: not this one."""
    home, found = _found(served, store, thing)
    images = hashes_of(found, _ids(served, home, body))
    id_, entries = assign_permanent_id(found)
    home.feedback.append([*entries, *remove_images(id_, images)])
    return Done(id=id_, said=f"{len(images)} taken out")


@things_api.post("/things/{thing}/split", responses=WRITE_SAYS)
def split(served: Offer, store: StoreNumber, thing: ThingId, body: Parted) -> Done:
    """Make a thing of its own of some photos."""
    home, found = _found(served, store, thing)
    images = hashes_of(found, _ids(served, home, body))
    if len(images) == len(found.rows):
        raise Refused(400, "leave at least one photo in the thing that you split")
    id_, entries = assign_permanent_id(found)
    own = new_thing_id()
    home.feedback.append([*entries, *name_thing(own, body.name, images, split_from=id_)])
    return Done(id=own, said="split")


@things_api.post("/things/{thing}/merge", responses=WRITE_SAYS)
def merge(served: Offer, store: StoreNumber, thing: ThingId, body: Joined) -> Done:
    """Say that a thing is another one."""
    home, found = _found(served, store, thing)
    into = home.feedback.gallery().thing(body.into)
    if into.id == found.id:
        raise Refused(400, "a thing cannot be joined with itself")
    id_, entries = assign_permanent_id(found)
    into_id, more = assign_permanent_id(into)
    home.feedback.append([*entries, *more, merge_things(into_id, id_)])
    return Done(id=into_id, said="joined")


@things_api.post("/things/{thing}/hide", responses=WRITE_SAYS)
def hide(served: Offer, store: StoreNumber, thing: ThingId, body: Hidden) -> Done:
    """Leave a thing out of the gallery, or show it again."""
    home, found = _found(served, store, thing)
    id_, entries = assign_permanent_id(found)
    home.feedback.append([*entries, hide_thing(id_, hidden=body.hidden)])
    return Done(id=id_, said="hidden" if body.hidden else "shown")


@things_api.post("/undo", responses=WRITE_SAYS)
def take_back(served: Offer, store: StoreNumber, body: Undone) -> Done:
    """Take back what was said last, or an entry by its id."""
    home = served.store(store)
    act = undo(home.store, body.entry)
    home.feedback.invalidate()
    return Done(id=act[-1].id, said=describe_act(act))


def _found(served: Served, store: int, thing: str) -> tuple[ServedStore, ShownThing]:
    home = served.store(store)
    return home, home.feedback.gallery().thing(thing)


def _ids(served: Served, home: ServedStore, chosen: Chosen) -> list[int]:
    home.require_shown(chosen.fingerprint)
    rows = [parse_row(served, ref, None) for ref in chosen.refs]
    if any(one.home is not home for one in rows):
        raise Refused(422, "these photos are of another store")
    return [one.row.id for one in rows]


def _thing(served: Served, store: int, thing: ShownThing) -> ThingAnswer:
    root = served.settings.root_path
    return ThingAnswer(
        id=thing.id,
        name=thing.name,
        photos=len(thing.rows),
        said=sum(row.image.hash in thing.confirmed for row in thing.rows),
        uncertain=thing.uncertain,
        hidden=thing.hidden,
        covers=[picture_answer(store, row, root, thing.name) for row in thing.rows[:_COVERS]],
    )

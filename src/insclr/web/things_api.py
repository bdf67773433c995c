"""The API of the gallery: things, their names and corrections."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query
from pydantic import AfterValidator, BaseModel, Field

from insclr.feedback.entries import (
    MAX_NAME,
    add_images,
    check_name,
    describe_act,
    find_act,
    hide_thing,
    join_acts,
    merge_things,
    name_thing,
    remove_images,
    undo,
)
from insclr.feedback.names import ShownThing, assign_permanent_id
from insclr.store import Entry, Row
from insclr.web.answers import PictureAnswer, Shown, picture_answer
from insclr.web.api import ERRORS, WRITE_ERRORS, Offer, StoreNumber
from insclr.web.queries import find_row
from insclr.web.served import Refused, Served, ServedStore

things_api = APIRouter(prefix="/api/stores/{store}")
ID_PATTERN = r"^(thing|group)-[0-9a-f]{4,64}$"
_COVERS = 4
_MOST_SHOWN = 1000  # photos of a thing's page

Ref = Annotated[str, Field(max_length=24)]


def _require_text(name: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise ValueError("the name is not text")
    return name


Name = Annotated[str, Field(max_length=4 * MAX_NAME), AfterValidator(_require_text)]


class ChosenPhotos(Shown):
    """Photos of a thing."""

    refs: list[Ref] = Field(min_length=1, max_length=500)


class JudgedProposals(ChosenPhotos):
    """Photos that look like a thing, and whether they show it."""

    same: bool


class ThingAnswer(BaseModel):
    """A thing in the gallery."""

    id: str
    name: str
    photos: int
    confirmed: int = Field(description="photos that people put here; the others joined by their score")
    uncertain: bool = Field(description="may be several things")
    proposed: int = Field(description="photos that look like it and wait for a person")
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

    confirmed: bool = Field(description="a person put it here; else it joined by its score")


class ProposedPicture(PictureAnswer):
    """A photo that looks like a thing."""

    fit: float = Field(description="how likely it shows the thing, by its most similar photos there")


class ThingPage(ThingAnswer, Shown):
    """A thing with its photos, the most typical first."""

    pictures: list[ThingPicture]
    proposals: list[ProposedPicture] = Field(
        description="photos that look like it, to confirm or to reject; the likeliest first"
    )
    other_part: list[str] = Field(description="refs of its photos that are probably another thing")


class Done(BaseModel):
    """What was done, and the id that the thing has now."""

    id: str
    message: str


class _Target:
    """The thing that a request is about."""

    def __init__(
        self,
        served: Offer,
        store: StoreNumber,
        thing: Annotated[str, Path(pattern=ID_PATTERN, description="id of a thing")],
    ) -> None:
        self.served, self.store = served, store
        self.home = served.store(store)
        self.thing = self.home.feedback.gallery().thing(thing)
        self.id, self.entries = assign_permanent_id(self.thing)

    def write(self, entries: Sequence[Entry], message: str, id_: str = "") -> Done:
        """Write entries about the thing, which then has its permanent id."""
        self.home.feedback.append(join_acts([*self.entries, *entries]))
        return Done(id=id_ or self.id, message=message)


Target = Annotated[_Target, Depends()]


@things_api.get("/things", responses=ERRORS)
def things(
    served: Offer,
    store: StoreNumber,
    count: Annotated[int, Query(ge=1, le=200)] = 60,
    offset: Annotated[int, Query(ge=0, le=10**7)] = 0,
    hidden: bool = False,
) -> GalleryAnswer:
    """The things of a store: groups of photos, corrected and named by people."""
    feedback = served.store(store).feedback
    found = feedback.gallery()
    shown = [one for one in found.things if hidden or not one.hidden]
    replayed = feedback.read()
    entries = replayed.entries
    return GalleryAnswer(
        things=[thing_answer(served, store, one) for one in shown[offset : offset + count]],
        total=len(shown),
        alone=len(found.alone),
        undo=describe_act(find_act(entries[-1], entries), replayed) if entries else "",
    )


@things_api.get("/things/{thing}", responses=ERRORS)
def thing_page(target: Target) -> ThingPage:
    """A thing with its photos."""
    return thing_page_answer(target.served, target.store, target.thing)


def thing_page_answer(served: Served, store: int, thing: ShownThing) -> ThingPage:
    """A thing with its photos, as the API shows it."""
    return ThingPage(
        fingerprint=served.store(store).store.info.fingerprint,
        **thing_answer(served, store, thing).model_dump(),
        pictures=[
            ThingPicture(
                **picture_answer(store, row, served.settings.root_path, thing.name).model_dump(),
                confirmed=row.image.hash in thing.confirmed,
            )
            for row in thing.rows[:_MOST_SHOWN]
        ],
        proposals=[
            ProposedPicture(
                **picture_answer(store, row, served.settings.root_path).model_dump(), fit=round(fit, 4)
            )
            for row, fit in thing.proposed[:_MOST_SHOWN]
        ],
        other_part=[f"{store}:{row.id}" for row in thing.split],
    )


@things_api.post("/things/{thing}/name", responses=WRITE_ERRORS)
def name(
    target: Target,
    name: Annotated[Name, Body(embed=True)],
    again: Annotated[bool, Body(embed=True, description="also where another thing has this name")] = False,
) -> Done:
    """Give a thing a name."""
    other = target.home.feedback.gallery().find_named(check_name(name), target.thing.id)
    if other is not None and not again:
        raise Refused(409, f"another thing of {len(other.rows)} photos is called {other.name}")
    # The photos of a group and its name are one act, and one undo.
    images = [row.image.hash for row in target.thing.rows] if target.entries else []
    target.entries = []
    return target.write(name_thing(target.id, name, images, grouped=True), "named")


@things_api.post("/things/{thing}/proposals", responses=WRITE_ERRORS)
def judge_proposals(target: Target, body: JudgedProposals) -> Done:
    """Confirm or reject photos that look like the thing."""
    target.home.require_shown(body.fingerprint)
    waiting = {row.id: row.image.hash for row, _ in target.thing.proposed}
    ids = [row_of(target.served, target.home, ref).id for ref in body.refs]
    if any(id_ not in waiting for id_ in ids):
        raise Refused(409, "a photo does not wait for this thing any more: look at it again")
    images = [waiting[id_] for id_ in ids]
    change = add_images if body.same else remove_images
    return target.write(
        change(target.id, images), f"{len(images)} {'confirmed' if body.same else 'rejected'}"
    )


@things_api.post("/things/{thing}/merge", responses=WRITE_ERRORS)
def merge(
    target: Target,
    into: Annotated[str, Body(embed=True, pattern=ID_PATTERN)],
    name: Annotated[Name | None, Body(embed=True, description="of both from now on")] = None,
) -> Done:
    """Join a thing with another one; where both have a name, one must be chosen."""
    other = target.home.feedback.gallery().thing(into)
    if other.id == target.thing.id:
        raise Refused(400, "a thing cannot be joined with itself")
    if name is None and target.thing.name and other.name and target.thing.name != other.name:
        raise Refused(409, f"they are called {target.thing.name} and {other.name}: choose one name")
    into_id, entries = assign_permanent_id(other)
    renamed = [] if name is None else name_thing(into_id, name, [])
    return target.write([*entries, *renamed, merge_things(into_id, target.id)], "joined", into_id)


@things_api.post("/things/{thing}/hide", responses=WRITE_ERRORS)
def hide(target: Target, hidden: Annotated[bool, Body(embed=True)] = True) -> Done:
    """Leave a thing out of the gallery, or show it again."""
    return target.write([hide_thing(target.id, hidden=hidden)], "hidden" if hidden else "shown")


@things_api.post("/undo", responses=WRITE_ERRORS)
def undo_act(
    served: Offer, store: StoreNumber, entry: Annotated[str, Body(embed=True, max_length=64)] = ""
) -> Done:
    """Undo the last act, or one by the id of an entry."""
    home = served.store(store)
    act = undo(home.store, entry)
    home.feedback.invalidate()
    return Done(id=act[-1].id, message=describe_act(act, home.feedback.read()))


def row_of(served: Served, home: ServedStore, ref: str) -> Row:
    """The row of this store that a page refers to."""
    found, row = find_row(served, ref)
    if found is not home:
        raise Refused(422, "this photo is of another store")
    return row


def thing_answer(served: Served, store: int, thing: ShownThing) -> ThingAnswer:
    """A thing as the gallery shows it."""
    root = served.settings.root_path
    return ThingAnswer(
        id=thing.id,
        name=thing.name,
        photos=len(thing.rows),
        confirmed=sum(row.image.hash in thing.confirmed for row in thing.rows),
        uncertain=thing.uncertain,
        proposed=len(thing.proposed),
        hidden=thing.hidden,
        covers=[picture_answer(store, row, root, thing.name) for row in thing.rows[:_COVERS]],
    )

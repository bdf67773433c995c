"""The API of the teaching page: questions, answers, the fair sample, and learning from feedback."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from insclr.feedback.entries import answer, judge, skip
from insclr.feedback.feedback import ENOUGH, FairSample
from insclr.feedback.links import Link, Links
from insclr.store import Row
from insclr.web.answers import PictureAnswer, Shown, picture_answer
from insclr.web.api import ERRORS, WRITE_ERRORS, Offer, StoreNumber
from insclr.web.learning import LearningState
from insclr.web.served import Refused, Served
from insclr.web.things_api import Ref, row_of

teach_api = APIRouter(prefix="/api/stores/{store}/teach")
_MOST_CONTRADICTIONS = 20


class Answered(Shown):
    """A screen with a person's answer; candidates in neither list are left open."""

    query: Ref
    same: list[Ref] = Field(default_factory=list, max_length=100)
    different: list[Ref] = Field(default_factory=list, max_length=100)


class Skipped(Shown):
    """A screen that a person skips."""

    query: Ref


class JudgedResult(Shown):
    """A person's judgement of a result of the fair sample."""

    query: Ref
    result: Ref
    rank: int = Field(ge=1, le=100)
    model: str = Field(max_length=128, description="whose result it is, from the sample")
    same: bool


class AnsweredPair(BaseModel):
    """An answer about two photos."""

    entry: str
    one: PictureAnswer | None
    other: PictureAnswer | None
    same: bool


class ContradictionAnswer(BaseModel):
    """An answer that does not fit, and the chain of answers that imply the opposite."""

    answer: AnsweredPair
    chain: list[AnsweredPair]
    asked_again: bool = Field(description="the least expected of them is set aside with the answer")


class ScreenAnswer(Shown):
    """One screen: a photo, and candidates that may show the same thing."""

    query: PictureAnswer | None = Field(description="none: there is nothing left to ask")
    candidates: list[PictureAnswer]
    screens: int = Field(description="answered so far")
    contradictions: list[ContradictionAnswer]


class SampleAnswer(Shown):
    """A result to judge, and how precise search is as far as it is known."""

    query: PictureAnswer | None
    result: PictureAnswer | None
    rank: int
    model: str = Field(description="fingerprint of the model whose result it is")
    judged: int = Field(description="pairs that were judged")
    counted: int = Field(description="judged results, of which `enough` are needed")
    enough: int
    sentences: list[str] = Field(description="one a store, the one that is searched first")


@teach_api.get("/screen", responses=ERRORS)
def screen(served: Offer, store: StoreNumber) -> ScreenAnswer:
    """The screen whose answers are expected to change most."""
    home = served.store(store)
    found, asking = home.feedback.screen()
    feedback = home.feedback.read()
    pictures = []
    if found is not None:
        ids = [int(asking.ids[place]) for place in (found.query, *found.candidates)]
        rows, names = {row.id: row for row in home.store.rows(ids)}, home.feedback.names(ids)
        pictures = [_picture(served, store, rows[id_], names.get(id_, "")) for id_ in ids if id_ in rows]
    return ScreenAnswer(
        fingerprint=home.store.info.fingerprint,
        query=pictures[0] if pictures else None,
        candidates=pictures[1:],
        screens=sum(entry.kind == "answer" for entry in feedback.entries),
        contradictions=_contradictions(served, store),
    )


@teach_api.post("/answer", responses=WRITE_ERRORS)
def give_answer(served: Offer, store: StoreNumber, body: Answered) -> ScreenAnswer:
    """Answer a screen; returns the next one."""
    home = served.store(store)
    home.require_shown(body.fingerprint)
    query, *images = (
        row_of(served, home, ref).image.hash for ref in (body.query, *body.same, *body.different)
    )
    same, different = images[: len(body.same)], images[len(body.same) :]
    if not images:
        raise Refused(422, "an answer needs at least one candidate: skip the screen instead")
    if query in images or set(same) & set(different):
        raise Refused(422, "a photo cannot be the same and different at once, nor be compared with itself")
    expected = home.feedback.predict(query, images)
    entry = answer(query, same, different, home.store.info.fingerprint, expected)
    home.feedback.add_answer(entry)
    return screen(served, store)


@teach_api.post("/skip", responses=WRITE_ERRORS)
def skip_screen(served: Offer, store: StoreNumber, body: Skipped) -> ScreenAnswer:
    """Skip a screen; returns the next one."""
    home = served.store(store)
    home.require_shown(body.fingerprint)
    home.feedback.add_answer(skip(row_of(served, home, body.query).image.hash))
    return screen(served, store)


@teach_api.get("/sample", responses=ERRORS)
def sample(served: Offer, store: StoreNumber) -> SampleAnswer:
    """The next result of the fair sample, and how precise search is as far as it was judged."""
    home = served.store(store)
    feedback = home.feedback.read()
    stores = served.stores
    drawn = FairSample([one.results() for one in stores], feedback)
    found = [drawn.precision(place) for place in range(len(stores))]
    draw = drawn.draw()
    query = result = None
    if draw is not None:
        ids, images = home.results().images, (draw.query, draw.result)
        shown = home.store.rows([ids[image] for image in images if image in ids])
        if len(shown) == 2:
            query, result = (_picture(served, store, row) for row in shown)
    return SampleAnswer(
        fingerprint=home.store.info.fingerprint,
        query=query,
        result=result,
        rank=draw.rank if draw else 0,
        model=draw.model if draw else "",
        judged=len(feedback.judged),
        counted=found[0].answers,
        enough=ENOUGH,
        sentences=[f"{one.title}: {each.sentence()}" for one, each in zip(stores, found, strict=True)],
    )


@teach_api.post("/judge", responses=WRITE_ERRORS)
def judge_result(served: Offer, store: StoreNumber, body: JudgedResult) -> SampleAnswer:
    """Judge a result of the fair sample; returns the next one."""
    home = served.store(store)
    home.require_shown(body.fingerprint)
    if body.model not in {one.store.info.fingerprint for one in served.stores}:
        raise Refused(409, "the model of this result is not served any more: nothing was written")
    query, result = (row_of(served, home, ref).image.hash for ref in (body.query, body.result))
    home.feedback.append([judge(query, result, body.rank, same=body.same, model=body.model)])
    return sample(served, store)


@teach_api.get("/learn", responses=ERRORS)
def learning_state(request: Request, served: Offer, store: StoreNumber) -> LearningState:
    """The state of learning."""
    served.store(store)
    return request.app.state.learning.state()  # type: ignore[no-any-return]


@teach_api.post("/learn", responses=WRITE_ERRORS)
def start_learning(request: Request, served: Offer, store: StoreNumber) -> LearningState:
    """Learn from feedback in another process; then the page shows the new model."""
    if store != 0:
        raise Refused(409, "only the first store learns")
    request.app.state.learning.start()
    return learning_state(request, served, store)


@teach_api.post("/learn/stop", responses=WRITE_ERRORS)
def stop_learning(request: Request, served: Offer, store: StoreNumber) -> LearningState:
    """Stop learning; the old model stays in use, and the next start continues from what is done."""
    served.store(store)
    request.app.state.learning.stop()
    return learning_state(request, served, store)


def _picture(served: Served, store: int, row: Row, thing: str = "") -> PictureAnswer:
    return picture_answer(store, row, served.settings.root_path, thing)


def _contradictions(served: Served, store: int) -> list[ContradictionAnswer]:
    home = served.store(store)
    found = Links(home.feedback.read().links).find_unresolved()[-_MOST_CONTRADICTIONS:]
    if not found:
        return []
    rows = {row.image.hash: row for row in home.store.rows_by_path().values()}

    def pair(link: Link) -> AnsweredPair:
        one, other = (
            _picture(served, store, rows[image]) if image in rows else None
            for image in (link.one, link.other)
        )
        return AnsweredPair(entry=link.source, one=one, other=other, same=link.same)

    return [
        ContradictionAnswer(
            answer=pair(one.link),
            chain=[pair(link) for link in one.chain],
            asked_again=one.set_aside is not None,
        )
        for one in found
    ]

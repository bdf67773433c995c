"""The JSON API: the same functions as the command line, for the page and for programs."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Form, Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from insclr.data.decode import BadImage
from insclr.model.stored import MODEL_NAME
from insclr.options import MAX_TOP, Local, Reranker, SearchOptions
from insclr.retrieval.local_store import uses_local
from insclr.retrieval.query import UnreadableQuery
from insclr.retrieval.search import search as search_store
from insclr.store import Row
from insclr.web.answers import (
    AboutAnswer,
    ColumnAnswer,
    Limits,
    PictureAnswer,
    Problem,
    SearchAnswer,
    StoreAnswer,
    match_answer,
    original_response,
    picture_answer,
)
from insclr.web.limits import ClientGone, run_limited
from insclr.web.queries import QueryForm, find_row, query_form
from insclr.web.served import Refused, Served, ServedStore

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "A filter, re-ranker or limit that makes no sense"},
    401: {"model": Problem, "description": "The token is missing or wrong"},
    404: {"model": Problem, "description": "No such store or row, or the file behind the row is gone"},
    503: {
        "model": Problem,
        "description": "The server is full, its disk fails, or the store does not answer",
    },
}
WRITE_ERRORS = ERRORS | {
    409: {"model": Problem, "description": "A new model is served by now, or it cannot learn just now"},
    422: {"model": Problem, "description": "A field that cannot be understood"},
    507: {"model": Problem, "description": "The server's disk is full: nothing was written"},
}
SEARCH_ERRORS = ERRORS | {
    413: {"model": Problem, "description": "Too many bytes or pixels"},
    415: {"model": Problem, "description": "Not a picture"},
    422: {"model": Problem, "description": "A box or field that cannot be understood"},
}
_JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}}
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/*": {}, "application/octet-stream": {}}},
    403: {"model": Problem, "description": "The server does not give originals"},
}

StoreNumber = Annotated[int, Path(ge=0, le=9, description="0, or 1 for the second store")]
RowId = Annotated[str, Path(pattern=r"^[0-9]{1,19}$", description="id of a row")]
Text = Annotated[str, Form(max_length=200)]

api = APIRouter(prefix="/api")


def _get_served(request: Request) -> Served:
    served: Served = request.app.state.served
    return served


Offer = Annotated[Served, Depends(_get_served)]


@api.get("/about", responses=ERRORS)
def about(served: Offer) -> AboutAnswer:
    """The stores, the re-rankers and the limits of this server."""
    stores = [
        StoreAnswer(
            number=number,
            title=one.title,
            name=one.name(),
            pictures=one.store.count(),
            model=_model_name(one.store.info.model),
            fingerprint=one.store.info.fingerprint,
            cutoff=round(one.cutoff(), 4),
            columns=one.store.columns(),
            folder=str(one.store.info.root) if served.settings.only_here else "",
        )
        for number, one in enumerate(served.stores)
    ]
    settings = served.settings
    limits = Limits(
        bytes=settings.max_bytes,
        pixels=settings.max_pixels,
        request_pixels=settings.max_request_pixels,
        queries=settings.max_queries,
        top=MAX_TOP,
    )
    return AboutAnswer(
        stores=stores,
        rerankers=sorted(filter(None, get_args(Reranker))),
        limits=limits,
        originals=settings.originals,
    )


def _model_name(model: str) -> str:
    """The name of a model without the folders it is in, which are nobody's business."""
    parts = model.partition("@")[0].split("/")
    return parts[-2] if parts[-1] == MODEL_NAME and len(parts) > 1 else parts[-1]


def search_options(
    top: Annotated[int, Form(ge=1, le=MAX_TOP)] = 20,
    min_score: Annotated[float, Form(ge=0, le=1, allow_inf_nan=False)] = 0.0,
    where: Annotated[str, Form(max_length=2000, description="such as: year >= 2015 and brand = acme")] = "",
    rerank: Text = "",
    aggregate: Annotated[Literal["mean", "max"], Form(description="how a query set is joined")] = "mean",
    ranking: Annotated[Literal["global", "regions"], Form(description="whole pictures or parts")] = "global",
    local: Annotated[Local, Form(description="use of matched points")] = "auto",
) -> SearchOptions:
    """The options of a form."""
    return SearchOptions(
        top=top,
        min_score=min_score,
        where=where,
        rerank=rerank,  # type: ignore[arg-type]  # SearchOptions checks it
        aggregate=aggregate,
        ranking=ranking,
        local=local,
    )


@api.post("/search", responses=SEARCH_ERRORS)
async def search(
    request: Request,
    served: Offer,
    query: Annotated[QueryForm, Depends(query_form)],
    options: Annotated[SearchOptions, Depends(search_options)],
    store: Annotated[int, Form(ge=0, le=9)] = 0,
) -> SearchAnswer:
    """Find pictures of the thing shown in one or several queries."""
    work = partial(_answer, served, store, query, options)
    if query.needs_decoding(store):
        return await run_limited(request, served.uploads, "searched for", work)
    if uses_local(served.store(store).store, options.local):  # costs time, and does not wait for uploads
        patience = served.settings.decode_seconds
        return await run_limited(request, served.matchings, "searched for", work, patience)
    return await run_in_threadpool(work, threading.Event())


def _answer(
    served: Served, store: int, query: QueryForm, options: SearchOptions, gone: threading.Event
) -> SearchAnswer:
    began = time.perf_counter()
    home = served.store(store)
    try:
        asked, unlike = query.queries(served, gone), query.unlike(served)
        known = home.feedback.known_pairs()
        matches = search_store(home.store, home.describer, asked, options, unlike=unlike, known=known)
    except UnreadableQuery as bad:
        raise Refused(404, str(bad)) from bad
    if apart := _told_apart(served, home, query):
        hashes = {row.id: row.image.hash for row in home.store.rows([match.id for match in matches])}
        matches = [match for match in matches if match.is_query or hashes.get(match.id) not in apart]
    names = home.feedback.names([match.id for match in matches])
    root = served.settings.root_path
    return SearchAnswer(
        store=store,
        fingerprint=home.store.info.fingerprint,
        cutoff=round(home.cutoff(), 4),
        likely=sum(match.likely and not match.is_query for match in matches),
        reranked=bool(options.rerank),
        milliseconds=round((time.perf_counter() - began) * 1000, 1),
        matches=[match_answer(store, match, root, names.get(match.id, "")) for match in matches],
    )


def _told_apart(served: Served, home: ServedStore, query: QueryForm) -> set[str]:
    """The contents that people marked as something else than a row of the query."""
    feedback = home.feedback.read()
    if not feedback.links or not query.rows:
        return set()
    own = {find_row(served, ref)[1].image.hash for ref, _ in query.rows}
    pairs = [(link.one, link.other) for link in feedback.links if not link.same]
    return {b for a, b in pairs if a in own} | {a for a, b in pairs if b in own}


@api.get("/stores/{store}/sample", responses=ERRORS)
def sample(
    served: Offer,
    store: StoreNumber,
    count: Annotated[int, Query(ge=1, le=100)] = 24,
    seed: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> list[PictureAnswer]:
    """Some pictures of a store by chance, to start from."""
    root = served.settings.root_path
    return [picture_answer(store, row, root) for row in served.store(store).sample(count, seed)]


@api.get("/stores/{store}/columns", responses=ERRORS)
def columns(served: Offer, store: StoreNumber) -> list[ColumnAnswer]:
    """What a filter can be built from: each column's kind and values."""
    return [
        ColumnAnswer(name=one.name, kind=one.kind, values=list(one.values), low=one.low, high=one.high)
        for one in served.store(store).columns()
    ]


@api.get("/stores/{store}/rows/{row}", responses=ERRORS)
def row_details(served: Offer, store: StoreNumber, row: RowId) -> PictureAnswer:
    """What is known of an indexed picture."""
    home = served.store(store)
    found = home.row(int(row))
    name = home.feedback.names([found.id]).get(found.id, "")
    return picture_answer(store, found, served.settings.root_path, name)


@api.get("/stores/{store}/rows/{row}/thumbnail", responses=ERRORS | _JPEG, response_class=Response)
async def thumbnail(
    request: Request,
    served: Offer,
    store: StoreNumber,
    row: RowId,
    if_none_match: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """A small JPEG of an indexed picture; 404 when its file is gone."""
    home = served.store(store)
    found = await run_in_threadpool(home.row, int(row))
    content = await run_in_threadpool(home.read_thumbnail, found)
    if content is None:
        content = await _decode_in_turn(
            request, served, found, partial(home.thumbnail, found, served.decoders)
        )
    # A browser may keep it but asks each time: a vanished file must not go on being shown.
    headers = {"cache-control": "private, no-cache", "etag": f'"{found.image.hash}"'}
    if if_none_match == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


@api.get("/stores/{store}/rows/{row}/picture", responses=ERRORS | _JPEG, response_class=Response)
async def picture(
    request: Request,
    served: Offer,
    store: StoreNumber,
    row: RowId,
    whole: Annotated[bool, Query(description="the photo that the row is a part of")] = False,
) -> Response:
    """A large JPEG of an indexed picture, made anew from its file; 404 when that is gone."""
    home = served.store(store)
    found = await run_in_threadpool(home.row, int(row))
    content = await _decode_in_turn(
        request, served, found, partial(home.preview, found, served.decoders, whole=whole)
    )
    return Response(content, media_type="image/jpeg", headers={"cache-control": "private, no-cache"})


async def _decode_in_turn(
    request: Request, served: Served, row: Row, work: Callable[[threading.Event], bytes]
) -> bytes:
    """The JPEG that the work makes in its turn; Refused (404) where the file of the row gives none.

    A page asks for many at once: they wait.
    """
    try:
        await request.body()  # there is none; a client that has left is noticed once it was read
        return await run_limited(request, served.previews, "decoded", work, patience=served.decoders.seconds)
    except BadImage as bad:
        raise Refused(404, f"{row.image.path}: {bad.reason}") from bad
    except ClientDisconnect:
        raise ClientGone from None


@api.get("/stores/{store}/rows/{row}/original", responses=ERRORS | _FILE, response_class=Response)
def original(
    served: Offer,
    store: StoreNumber,
    row: RowId,
    download: Annotated[bool, Query(description="save it instead of showing it")] = False,
) -> Response:
    """The indexed file itself, as it is on disk; 404 when that is gone or no longer a photo."""
    if not served.settings.originals:
        raise Refused(403, "this server does not give the original files")
    home = served.store(store)
    found = home.row(int(row))
    return original_response(home.file(found), found.image.hash, download=download)

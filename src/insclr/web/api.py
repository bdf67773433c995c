"""The JSON API: the same functions as the command line, for the page and for programs."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, File, Form, Header, Path, Query, Request, Response, UploadFile
from fastapi.concurrency import run_in_threadpool

from insclr.data.decode import BadImage, Box
from insclr.files import content_hash
from insclr.retrieval.local.features import has_opencv
from insclr.retrieval.reranker_names import RERANKER_NAMES
from insclr.retrieval.search import MAX_TOP, Search, search_set
from insclr.retrieval.store import Row
from insclr.web.answers import (
    AboutAnswer,
    ColumnAnswer,
    Limits,
    PictureAnswer,
    Problem,
    SearchAnswer,
    StoreAnswer,
    match_answer,
    picture_answer,
)
from insclr.web.decode_pool import Busy
from insclr.web.load import Full
from insclr.web.originals import original_response
from insclr.web.queries import (
    QueryImages,
    UploadQuery,
    describe_queries,
    parse_boxes,
    parse_row,
    query_details,
    require_few_pixels,
)
from insclr.web.request_checks import RETRY
from insclr.web.served import Refused, Served

SAYS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "A filter, re-ranker or limit that makes no sense"},
    401: {"model": Problem, "description": "The token is missing or wrong"},
    404: {"model": Problem, "description": "No such store or row, or the file behind the row is gone"},
    503: {"model": Problem, "description": "The server is full or the store does not answer: try again"},
}
WRITE_SAYS = SAYS | {
    409: {"model": Problem, "description": "A new model is served by now, or it cannot learn just now"},
    422: {"model": Problem, "description": "A field that cannot be understood"},
}
_SEARCH_SAYS = SAYS | {
    413: {"model": Problem, "description": "Too many bytes or pixels"},
    415: {"model": Problem, "description": "Not a picture"},
    422: {"model": Problem, "description": "A box or field that cannot be understood"},
}
_JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}}
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/*": {}, "application/octet-stream": {}}},
    403: {"model": Problem, "description": "The server was told not to give originals"},
}

StoreNumber = Annotated[int, Path(ge=0, le=9, description="0, or 1 for the second store")]
RowId = Annotated[str, Path(pattern=r"^[0-9]{1,19}$", description="id of a row")]
Text = Annotated[str, Form(max_length=200)]

api = APIRouter(prefix="/api")


def _served(request: Request) -> Served:
    served: Served = request.app.state.served
    return served


Offer = Annotated[Served, Depends(_served)]


@api.get("/about", responses=SAYS)
def about(served: Offer) -> AboutAnswer:
    """The stores, the re-rankers and the limits of this server."""
    stores = [
        StoreAnswer(
            number=number,
            title=one.title,
            name=one.name(),
            pictures=one.store.count(),
            model=one.store.info.model,
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
        rerankers=sorted([*RERANKER_NAMES, *(["geometric"] if has_opencv() else [])]),
        limits=limits,
        originals=settings.originals,
    )


@api.post("/search", responses=_SEARCH_SAYS)
async def search(
    request: Request,
    served: Offer,
    pictures: Annotated[list[UploadFile], File(description="photos of the thing")] = [],  # noqa: B006
    boxes: Annotated[list[str], Form(description="a part of each photo: x1,y1,x2,y2 or empty")] = [],  # noqa: B006
    rows: Annotated[list[str], Form(description="indexed pictures of the thing, as STORE:ID")] = [],  # noqa: B006
    row_boxes: Annotated[list[str], Form(description="a part of each row's picture")] = [],  # noqa: B006
    box_unit: Annotated[Literal["pixels", "fraction"], Form()] = "pixels",
    store: Annotated[int, Form(ge=0, le=9)] = 0,
    top: Annotated[int, Form(ge=1, le=MAX_TOP)] = 20,
    min_score: Annotated[float, Form(ge=0, le=1, allow_inf_nan=False)] = 0.0,
    where: Annotated[str, Form(max_length=2000, description="such as: year >= 2015 and brand = acme")] = "",
    rerank: Text = "",
    aggregate: Annotated[Literal["mean", "max"], Form(description="how a query set is joined")] = "mean",
    ranking: Annotated[
        Literal["global", "regions", "asmk"], Form(description="whole pictures or parts")
    ] = "global",
) -> SearchAnswer:
    """Find pictures of the thing shown in one or several queries."""
    limits = served.settings
    count = len(pictures) + len(rows)
    if not 1 <= count <= limits.max_queries:
        raise Refused(422, f"give 1 to {limits.max_queries} queries (pictures and rows), not {count}")
    asked = Search(
        top=top, min_score=min_score, where=where, rerank=rerank, aggregate=aggregate, ranking=ranking
    )
    upload_boxes = parse_boxes(boxes, len(pictures))
    uploads = [UploadQuery(one.file.read(), box) for one, box in zip(pictures, upload_boxes, strict=True)]
    query = _Query(store, asked, uploads, rows, parse_boxes(row_boxes, len(rows)), box_unit == "fraction")
    gone = threading.Event()
    foreign = any(ref.partition(":")[0] != str(store) for ref in rows)  # their descriptors are another model's
    if not (uploads or foreign or any(row_boxes) or asked.verifier or asked.ranking == "asmk"):
        return await run_in_threadpool(_answer, served, query, gone)
    # Decoding waits for its turn in a thread: only so many may do so, or none would be left for other requests.
    try:
        with served.uploads.held():
            return await _unless_gone(request, gone, run_in_threadpool(_answer, served, query, gone))
    except (Full, Busy):
        raise Refused(503, "too many pictures are being searched for: try again in a moment", RETRY) from None


@dataclass(frozen=True)
class _Query:
    store: int
    asked: Search
    uploads: list[UploadQuery]
    rows: list[str]
    row_boxes: list[Box | None]
    fractions: bool


def _answer(served: Served, query: _Query, gone: threading.Event) -> SearchAnswer:
    began = time.perf_counter()
    home, limits = served.store(query.store), served.settings
    rows = [parse_row(served, ref, box) for ref, box in zip(query.rows, query.row_boxes, strict=True)]
    require_few_pixels(query.uploads, limits.max_pixels, limits.max_request_pixels)
    images = QueryImages(served.decoders, query.fractions, limits.max_pixels, gone)
    regions = query.asked.ranking == "regions"
    descriptors = describe_queries(home, query.uploads, rows, images, own_size=regions)
    details = query_details(home, query.asked, query.uploads, rows, images)
    own = {one.row.image.hash for one in rows if one.box is None}
    own |= {content_hash(one.content) for one in query.uploads if one.box is None}
    matches = search_set(home.store, descriptors, query.asked, details, own=own)
    names = home.said.names([match.id for match in matches])
    return SearchAnswer(
        store=query.store,
        cutoff=round(home.cutoff(), 4),
        likely=sum(match.likely and not match.is_query for match in matches),
        reranked=bool(query.asked.rerank) or query.asked.ranking == "asmk",
        milliseconds=round((time.perf_counter() - began) * 1000, 1),
        matches=[
            match_answer(query.store, match, limits.root_path, names.get(match.id, "")) for match in matches
        ],
    )


async def _unless_gone(
    request: Request, gone: threading.Event, work: Coroutine[Any, Any, SearchAnswer]
) -> SearchAnswer:
    """Wait for the work; once the client has left, `gone` is set so that it ends soon."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=0.1))[0]:
            if await request.is_disconnected():
                gone.set()
        return await task
    finally:
        gone.set()


@api.get("/stores/{store}/sample", responses=SAYS)
def sample(
    served: Offer,
    store: StoreNumber,
    count: Annotated[int, Query(ge=1, le=100)] = 24,
    seed: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> list[PictureAnswer]:
    """Some pictures of a store by chance, to start from."""
    root = served.settings.root_path
    return [picture_answer(store, row, root) for row in served.store(store).sample(count, seed)]


@api.get("/stores/{store}/columns", responses=SAYS)
def columns(served: Offer, store: StoreNumber) -> list[ColumnAnswer]:
    """What a filter can be built from: each column's kind and values."""
    return [
        ColumnAnswer(name=one.name, kind=one.kind, values=list(one.values), low=one.low, high=one.high)
        for one in served.store(store).columns()
    ]


@api.get("/stores/{store}/rows/{row}", responses=SAYS)
def row_details(served: Offer, store: StoreNumber, row: RowId) -> PictureAnswer:
    """What is known of an indexed picture."""
    home = served.store(store)
    found = home.row(int(row))
    name = home.said.names([found.id]).get(found.id, "")
    return picture_answer(store, found, served.settings.root_path, name)


@api.get("/stores/{store}/rows/{row}/thumbnail", responses=SAYS | _JPEG, response_class=Response)
def thumbnail(
    served: Offer,
    store: StoreNumber,
    row: RowId,
    if_none_match: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """A small JPEG of an indexed picture; 404 when its file is gone."""
    home = served.store(store)
    found = home.row(int(row))
    with _readable(found):
        content = home.thumbnail(found, served.decoders)
    # A browser may keep it but asks each time: a vanished file must not go on being shown.
    headers = {"cache-control": "private, no-cache", "etag": f'"{found.image.hash}"'}
    if if_none_match == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


@api.get("/stores/{store}/rows/{row}/picture", responses=SAYS | _JPEG, response_class=Response)
def picture(served: Offer, store: StoreNumber, row: RowId) -> Response:
    """A large JPEG of an indexed picture, made anew from its file; 404 when that is gone."""
    home = served.store(store)
    found = home.row(int(row))
    with _readable(found):
        content = home.preview(found, served.decoders)
    return Response(content, media_type="image/jpeg", headers={"cache-control": "private, no-cache"})


@api.get("/stores/{store}/rows/{row}/original", responses=SAYS | _FILE, response_class=Response)
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
    return original_response(home.file(home.row(int(row))), download=download)


@contextmanager
def _readable(row: Row) -> Iterator[None]:
    """Answer 404 where the file of a row gives no picture."""
    try:
        yield
    except BadImage as bad:
        raise Refused(404, f"{row.image.path}: {bad.reason}") from bad
    except Busy:
        raise Refused(503, "too many pictures are being decoded: try again in a moment", RETRY) from None

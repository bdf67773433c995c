"""The JSON API: the same functions as the command line, for the page and for programs."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Header, Path, Query, Response, UploadFile
from fastapi.responses import FileResponse

from insclr.data.decode import BadImage
from insclr.retrieval.rerank import RERANKERS
from insclr.retrieval.search import MAX_TOP, Search, search_set
from insclr.retrieval.store import Row
from insclr.web.answers import (
    AboutAnswer,
    Limits,
    PictureAnswer,
    Problem,
    SearchAnswer,
    StoreAnswer,
    match_answer,
    picture_answer,
)
from insclr.web.collection import Collection
from insclr.web.queries import Refused, RowQuery, UploadQuery, embed_queries, parse_boxes
from insclr.web.settings import ServeSettings

_SAYS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "A filter, re-ranker or limit that makes no sense"},
    401: {"model": Problem, "description": "The token is missing or wrong"},
    404: {"model": Problem, "description": "No such store or row, or the file behind the row is gone"},
    503: {"model": Problem, "description": "The store does not answer just now"},
}
_SEARCH_SAYS = _SAYS | {
    413: {"model": Problem, "description": "Too many bytes or pixels"},
    415: {"model": Problem, "description": "Not a picture"},
    422: {"model": Problem, "description": "A box or field that cannot be understood"},
}
_JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}}}

StoreNumber = Annotated[int, Path(ge=0, le=9, description="0, or 1 for the second store")]
RowId = Annotated[str, Path(pattern=r"^[0-9]{1,19}$", description="id of a row")]
Text = Annotated[str, Form(max_length=200)]


def create_api(collections: Sequence[Collection], settings: ServeSettings) -> APIRouter:
    """The routes below /api for these collections."""
    api = APIRouter(prefix="/api")

    def collection_of(number: int) -> Collection:
        if number >= len(collections):
            raise Refused(404, f"there is no store {number}: this server has {len(collections)}")
        return collections[number]

    def row_of(collection: Collection, id_: str) -> Row:
        row = collection.row(int(id_))
        if row is None:
            raise Refused(404, f"there is no row {id_} in this store")
        return row

    def row_query(ref: str, box: tuple[float, float, float, float] | None) -> RowQuery:
        number, _, id_ = ref.partition(":")
        if not (number.isdecimal() and id_.isdecimal() and ref.isascii() and len(ref) <= 22):
            raise Refused(422, f"{ref[:40]!r} names no row: give STORE:ID")
        home = collection_of(int(number))
        return RowQuery(home, row_of(home, id_), box)

    @api.get("/about", responses=_SAYS)
    def about() -> AboutAnswer:
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
            )
            for number, one in enumerate(collections)
        ]
        limits = Limits(
            bytes=settings.max_bytes, pixels=settings.max_pixels, queries=settings.max_queries, top=MAX_TOP
        )
        return AboutAnswer(stores=stores, rerankers=sorted(RERANKERS), limits=limits)

    @api.post("/search", responses=_SEARCH_SAYS)
    def search(
        pictures: Annotated[list[UploadFile], File(description="photos of the thing")] = [],  # noqa: B006
        boxes: Annotated[list[str], Form(description="a part of each photo: x1,y1,x2,y2 or empty")] = [],  # noqa: B006
        rows: Annotated[list[str], Form(description="indexed pictures of the thing, as STORE:ID")] = [],  # noqa: B006
        row_boxes: Annotated[list[str], Form(description="a part of each row's picture")] = [],  # noqa: B006
        box_unit: Annotated[Literal["pixels", "fraction"], Form()] = "pixels",
        store: Annotated[int, Form(ge=0, le=9)] = 0,
        top: Annotated[int, Form(ge=1, le=MAX_TOP)] = 20,
        min_score: Annotated[float, Form(ge=0, le=1, allow_inf_nan=False)] = 0.0,
        where: Annotated[
            str, Form(max_length=2000, description="such as: year >= 2015 and brand = acme")
        ] = "",
        rerank: Text = "",
        aggregate: Annotated[Literal["mean", "max"], Form(description="how a query set is joined")] = "mean",
    ) -> SearchAnswer:
        """Find pictures of the thing shown in one or several queries."""
        began = time.perf_counter()
        collection = collection_of(store)
        count = len(pictures) + len(rows)
        if not 1 <= count <= settings.max_queries:
            raise Refused(422, f"give 1 to {settings.max_queries} queries (pictures and rows), not {count}")
        asked = Search(top=top, min_score=min_score, where=where, rerank=rerank, aggregate=aggregate)
        upload_boxes, stored_boxes = parse_boxes(boxes, len(pictures)), parse_boxes(row_boxes, len(rows))
        row_queries = [row_query(ref, box) for ref, box in zip(rows, stored_boxes, strict=True)]
        uploads = [UploadQuery(one.file.read(), box) for one, box in zip(pictures, upload_boxes, strict=True)]
        vectors = embed_queries(
            collection,
            uploads,
            row_queries,
            fractions=box_unit == "fraction",
            max_pixels=settings.max_pixels,
        )
        # A whole picture of the collection is no answer to itself, also where another store gave it another id.
        own = {one.home.file(one.row) for one in row_queries if one.box is None}
        wider = replace(asked, top=min(MAX_TOP, top + len(own)))
        found = search_set(collection.store, vectors, wider)
        matches = [one for one in found if collection.store.info.root / one.path not in own][:top]
        return SearchAnswer(
            store=store,
            cutoff=round(collection.cutoff(), 4),
            likely=sum(match.likely for match in matches),
            reranked=bool(rerank),
            milliseconds=round((time.perf_counter() - began) * 1000, 1),
            matches=[match_answer(store, match) for match in matches],
        )

    @api.get("/stores/{store}/sample", responses=_SAYS)
    def sample(
        store: StoreNumber,
        count: Annotated[int, Query(ge=1, le=100)] = 24,
        seed: Annotated[int, Query(ge=0, le=2**31)] = 0,
    ) -> list[PictureAnswer]:
        """Some pictures of a store by chance, to start from."""
        return [picture_answer(store, row) for row in collection_of(store).sample(count, seed)]

    @api.get("/stores/{store}/rows/{row}", responses=_SAYS)
    def row_details(store: StoreNumber, row: RowId) -> PictureAnswer:
        """What is known of an indexed picture."""
        return picture_answer(store, row_of(collection_of(store), row))

    @api.get("/stores/{store}/rows/{row}/thumbnail", responses=_SAYS | _JPEG, response_class=FileResponse)
    def thumbnail(
        store: StoreNumber,
        row: RowId,
        if_none_match: Annotated[str | None, Header(include_in_schema=False)] = None,
    ) -> Response:
        """A small JPEG of an indexed picture; 404 when its file is gone."""
        collection = collection_of(store)
        found = row_of(collection, row)
        try:
            file = collection.thumbnail(found)
        except BadImage as bad:
            raise Refused(404, f"{found.picture.path}: {bad.reason}") from bad
        # A browser may keep it but asks each time: a vanished file must not go on being shown.
        headers = {"cache-control": "private, no-cache", "etag": f'"{found.picture.hash}"'}
        if if_none_match == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return FileResponse(file, media_type="image/jpeg", headers=headers)

    @api.get("/stores/{store}/rows/{row}/picture", responses=_SAYS | _JPEG, response_class=Response)
    def picture(store: StoreNumber, row: RowId) -> Response:
        """A large JPEG of an indexed picture, made anew from its file; 404 when that is gone."""
        collection = collection_of(store)
        found = row_of(collection, row)
        try:
            content = collection.preview(found)
        except BadImage as bad:
            raise Refused(404, f"{found.picture.path}: {bad.reason}") from bad
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, no-cache"})

    return api

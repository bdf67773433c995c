"""Explain a match: the points that it shares with the query, and the box of the thing in it."""

import threading
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from pydantic import BaseModel, Field

from insclr.retrieval.local_features import LocalFeatures
from insclr.retrieval.verification import MIN_INLIERS, verify
from insclr.web.api import SEARCH_ERRORS
from insclr.web.limits import run_limited
from insclr.web.queries import QueryDecoder, QueryForm, find_row, query_form, row_query
from insclr.web.served import Served

why_api = APIRouter(prefix="/api")

Points = list[list[float]]


class WhyAnswer(BaseModel):
    """The geometry between a query and a found picture; all places are fractions of their picture."""

    verified: bool
    sentence: str = Field(description="the answer in words, for people")
    inliers: int = 0
    query: int = Field(default=0, description="which query it is about: uploads first, then rows")
    query_points: Points = []
    found_points: Points = Field(default=[], description="as many, in the same order")
    transform: Points = Field(default=[], description="2 x 3, from the query to the found picture")
    box: list[float] | None = Field(
        default=None, description="of the thing in the found picture: x1, y1, x2, y2"
    )


@why_api.post("/why", responses=SEARCH_ERRORS)
async def why(
    request: Request,
    found: Annotated[str, Form(description="the picture that was found, as STORE:ID")],
    query: Annotated[QueryForm, Depends(query_form)],
) -> WhyAnswer:
    """The points of a query that are found again in a picture, where they agree on one transform."""
    served: Served = request.app.state.served
    return await run_limited(request, served.uploads, "compared", partial(_answer, served, found, query))


def _answer(served: Served, found: str, query: QueryForm, gone: threading.Event) -> WhyAnswer:
    queries = query.queries(served, gone)
    home, row = find_row(served, found)
    # The found image's features are kept, or made now from its file.
    target = row_query(QueryDecoder(served.decoders, gone=gone), home, row).local_features()
    return _explain([one.local_features() for one in queries], target)


def _explain(queries: list[LocalFeatures], target: LocalFeatures) -> WhyAnswer:
    geometries = [verify(one, target) for one in queries]
    inliers = [-1 if one is None else one.inliers for one in geometries]
    best = inliers.index(max(inliers))
    geometry = geometries[best]
    if geometry is None:
        return WhyAnswer(verified=False, sentence=_explain_nothing(queries, target))
    return WhyAnswer(
        verified=True,
        sentence=f"{geometry.inliers} points of the query are found again in this photo, in the same arrangement.",
        inliers=geometry.inliers,
        query=best,
        query_points=geometry.query_points.round(4).tolist(),
        found_points=geometry.found_points.round(4).tolist(),
        transform=geometry.transform.round(5).tolist(),
        box=[round(side, 4) for side in geometry.box],
    )


def _explain_nothing(queries: list[LocalFeatures], target: LocalFeatures) -> str:
    if not any(map(len, queries)):
        return "The query has no points to match: it is of one colour, blurred or tiny."
    if not len(target):
        return "This photo has no points to match: it is of one colour, blurred or tiny."
    return (
        f"No {MIN_INLIERS} points of the query are found again in the same arrangement: "
        "this photo was found by its overall look alone."
    )

"""From query descriptors to matches with scores: single queries, query sets, filters, re-ranking."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from insclr.arrays import Descriptors, Ids, Scores
from insclr.data.decode import Box
from insclr.data.given import QueryPhoto, UnreadableQuery, is_single
from insclr.data.images import ImageList, list_images
from insclr.data.table import one_line
from insclr.describe.cells import Cells
from insclr.describe.describer import ModelDescriber
from insclr.errors import UserError
from insclr.retrieval.copies import group_copies
from insclr.retrieval.local.keep_asmk import AsmkSearch
from insclr.retrieval.local.query import details_of
from insclr.retrieval.local.ranking import (
    NO_DETAILS,
    QueryDetails,
    Results,
    check_ranking,
    joined_queries,
    verified,
)
from insclr.retrieval.regions import search_best_region
from insclr.retrieval.reranker_names import require_known, verifier_name
from insclr.retrieval.score import LIKELY, Band, ScoreCurve, score_curve_of
from insclr.retrieval.store_describer import describer_of
from insclr.store import Condition, Store, open_store, parse_where

MAX_TOP = 1000
# A re-ranker sees so many of the nearest rows, not the whole collection.
_SHORTLIST = 500
_SPARE = 2  # results looked at for each one asked for, since copies are folded into one
_asmk = AsmkSearch()


@dataclass(frozen=True)
class Search:
    """What is asked of a search besides the query itself."""

    top: int = 20
    min_score: float = 0.0
    where: str = ""
    rerank: str = ""
    aggregate: Literal["mean", "max"] = "mean"  # psi of the paper: over the members of a query set
    ranking: str = "global"  # by whole images, by their best region, or by ASMK

    def __post_init__(self) -> None:
        if not 1 <= self.top <= MAX_TOP:
            raise UserError(f"top must be between 1 and {MAX_TOP}, not {self.top}")
        if not 0 <= self.min_score <= 1:
            raise UserError(f"min score must be between 0 and 1, not {self.min_score:g}")
        if self.aggregate not in ("mean", "max"):
            raise UserError(f"similarities of a query set are joined by mean or max, not {self.aggregate!r}")
        check_ranking(self.ranking)
        require_known(self.rerank)

    @property
    def verifier(self) -> str:
        """The name of the re-ranker where it is one that compares images rather than descriptors."""
        return verifier_name(self.rerank)


@dataclass(frozen=True)
class Match:
    """One image found: its cosine, the calibrated score and what that means."""

    id: int
    path: str
    similarity: float
    score: float
    likely: bool  # more likely right than wrong
    columns: Mapping[str, str]
    band: Band
    is_query: bool = False  # the photo that was searched for: no answer
    copies: tuple[str, ...] = ()  # paths of further results that show the same photo
    box: Box | None = None  # where the thing is, as fractions of the image, where that is known
    inliers: int | None = None  # matched points that prove it, where it was verified

    def proof(self) -> str:
        """Matched points and box in words; empty where neither is known."""
        points = f"  {self.inliers} points" if self.inliers else ""
        return points + (f"  at {','.join(f'{side:.2f}' for side in self.box)}" if self.box else "")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a line of JSON; what is not known is left out."""
        values = asdict(self) | {"similarity": round(self.similarity, 4), "score": round(self.score, 4)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Found:
    """The matches of one query file, or the reason why it could not be searched for."""

    query: str
    matches: tuple[Match, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a line of JSON."""
        if self.error:
            return {"query": self.query, "error": self.error}
        return {"query": self.query, "matches": [match.to_json() for match in self.matches]}

    def table(self) -> str:
        """A line a match: score, cosine, band, path, number of further copies, and what proves it."""
        lines = ["score  cosine  band   path"]
        for match in self.matches:
            band = "query" if match.is_query else match.band
            count = len(match.copies)
            copies = f"  (+{count} cop{'y' if count == 1 else 'ies'})" if count else ""
            numbers = f"{match.score:5.2f}  {match.similarity:6.3f}  {band:5s}"
            lines.append(f"{numbers}  {one_line(match.path)}{copies}{match.proof()}")
        return "\n".join(lines if self.matches else ["nothing found"])


def search_files(
    uri: str | Path,
    query: Path,
    asked: Search,
    *,
    box: Box | None = None,
    model: str = "",
    device: str = "auto",
    engine: str = "auto",
) -> Iterator[Found]:
    """Search the store at `uri` for an image, or for every image of a folder or list, one after the other.

    An unreadable image is a UserError when it is the only one; among others it is passed over with a reason.
    """
    single = is_single(query)
    images = ImageList(query.parent, (query.name,)) if single else list_images(query)
    store = open_store(uri)
    try:
        parse_where(asked.where, store.columns())
        describer = describer_of(
            store.info, model, workers=0, device=device, engine=engine, expected=len(images)
        )
        for i, path in enumerate(images.paths):
            try:
                matches = search_photos(store, describer, [QueryPhoto(images.file(i))], asked, box)
            except UnreadableQuery as bad:
                if single:
                    raise
                yield Found(path, error=bad.reason)
            else:
                yield Found(str(query) if single else path, tuple(matches))
    finally:
        store.close()


def search_photos(
    store: Store, describer: ModelDescriber, photos: Sequence[QueryPhoto], asked: Search, box: Box | None
) -> list[Match]:
    """Search for photos as images of one instance, or for what is inside `box` in each.

    Matches that are the photos themselves are marked, unless a part of them is meant.
    """
    images = [photo.picture(None if box else describer.longest) for photo in photos]
    details = details_of(
        describer,
        images,
        box,
        [photo.picture for photo in photos],
        store=store,
        ranking=asked.ranking,
        verifier=asked.verifier,
    )
    descriptors = describer.images(images, [box] * len(images), own_size=asked.ranking == "regions")
    own = () if box else tuple(photo.hash for photo in photos)
    return search_set(store, descriptors, asked, details, own=own)


def search_set(
    store: Store,
    queries: Descriptors,
    asked: Search,
    details: QueryDetails = NO_DETAILS,
    *,
    own: Collection[str] = (),
) -> list[Match]:
    """All queries together, as images of one instance (the paper's query set): mean or max of similarities.

    `details` are what rankings and verifiers need besides descriptors. Copies of a photo are one match. `own` are the
    content hashes of the query photos: their matches are marked as the query and come besides the `top` others.
    """
    if not len(queries):
        raise UserError("nothing to search for: give at least one query")
    where = parse_where(asked.where, store.columns())
    wider = replace(asked, top=min(MAX_TOP, _SPARE * asked.top + len(own)))
    wanted = max(wider.top, _SHORTLIST if asked.rerank else 0)
    found = _ranked(store, queries, wanted, where, asked, details.cells)
    if asked.verifier:
        found = verified(store, found, asked.verifier, details)
    elif asked.rerank:
        found = _reranked(store, queries, found, asked.rerank)
    return _folded(store, _matches(store, found, wider, score_curve_of(store)), asked.top, own)


def _ranked(
    store: Store,
    queries: Descriptors,
    top: int,
    where: Condition | None,
    asked: Search,
    cells: Sequence[Cells],
) -> Results:
    """The results of the ranking that is asked for; similarities are always those of the descriptors."""
    if asked.ranking == "asmk":
        return _by_asmk(store, queries, top, where, cells)
    if asked.ranking == "regions":
        ids, similarities, boxes = search_best_region(store, joined_queries(queries), top, where)
        there = ids[0] >= 0
        return Results(ids[0][there], similarities[0][there], boxes[0][there])
    ids, similarities = _nearest(store, queries, top, where, asked.aggregate)
    return Results(ids[ids >= 0], similarities[ids >= 0])


def _nearest(
    store: Store, queries: Descriptors, top: int, where: Condition | None, aggregate: str
) -> tuple[Ids, Scores]:
    """The rows most similar to the set: ids and similarities, best first."""
    if len(queries) == 1:
        found = store.search(queries, top, where)
        return found.ids[0], found.similarities[0]
    if aggregate == "mean":
        # The mean of cosines with unit descriptors is the inner product with the mean of the descriptors.
        mean = queries.mean(0)
        length = float(np.linalg.norm(mean))
        if length < 1e-6:
            raise UserError("these queries cancel each other out: search for them one by one")
        found = store.search((mean / length)[None].astype(np.float32), top, where)
        return found.ids[0], found.similarities[0] * length
    # The best by the largest similarity are among the best of the single queries.
    found = store.search(queries, top, where)
    flat_ids, flat = found.ids.ravel(), found.similarities.ravel()
    order = np.argsort(-flat, kind="stable")
    _, first = np.unique(flat_ids[order], return_index=True)
    order = order[np.sort(first)][:top]
    return flat_ids[order], flat[order]


def _by_asmk(
    store: Store, queries: Descriptors, top: int, where: Condition | None, cells: Sequence[Cells]
) -> Results:
    if not cells:
        raise UserError("--ranking asmk needs the picture of the query itself")
    ids, scores = _asmk.scores(store, cells)
    if where is not None:
        # All of them: what local descriptors find may be far by the descriptors of whole images.
        met = store.search(joined_queries(queries), store.count(), where).ids[0]
        kept = np.isin(ids, met)
        ids, scores = ids[kept], scores[kept]
    ids = ids[np.argsort(-scores, kind="stable")[:top]]
    similarities = store.descriptors(ids) @ joined_queries(queries)[0]
    return Results(ids, np.asarray(similarities, np.float32))


def _reranked(store: Store, queries: Descriptors, found: Results, name: str) -> Results:
    """Order the shortlist anew; a query set is re-ranked by its mean."""
    # Imported here: a plain search need not wait for what re-ranking computes with.
    from insclr.retrieval.rerank import Ranking
    from insclr.retrieval.rerank import rerank as reranker_named

    rerank = reranker_named(name)
    if len(found.ids) < 2:
        return found
    # (1, shortlist): the shortlist is the re-ranker's whole database
    places = np.arange(len(found.ids))[None]
    shortlist = Ranking(places, found.similarities[None].astype(np.float32))
    order = rerank(joined_queries(queries), store.descriptors(found.ids), shortlist).ids[0]
    boxes = None if found.boxes is None else found.boxes[order]
    return Results(found.ids[order], found.similarities[order], boxes)


def _matches(store: Store, found: Results, asked: Search, curve: ScoreCurve) -> list[Match]:
    scores = curve.score(found.similarities)
    good = np.flatnonzero(scores >= asked.min_score)[: asked.top].tolist()
    ids = found.ids.tolist()
    rows = {row.id: row.image for row in store.rows([ids[i] for i in good])}
    return [
        Match(
            ids[i],
            rows[ids[i]].path,
            float(found.similarities[i]),
            float(scores[i]),
            bool(scores[i] >= LIKELY),
            rows[ids[i]].columns,
            curve.band(float(scores[i])),
            box=found.box(i),
            inliers=found.inliers(i),
        )
        for i in good
        if ids[i] in rows
    ]


def _folded(store: Store, matches: list[Match], top: int, own: Collection[str]) -> list[Match]:
    """The first `top` photos among the matches, each with its copies, and besides them the query's own, marked."""
    hashes = {row.id: row.image.hash for row in store.rows([match.id for match in matches])}
    matches = [match for match in matches if match.id in hashes]
    if not matches:
        return []
    contents = [hashes[match.id] for match in matches]
    folded: list[Match] = []
    others = 0
    for first, *copies in group_copies(contents, store.descriptors([match.id for match in matches])):
        is_query = any(contents[place] in own for place in (first, *copies))
        others += not is_query
        if is_query or others <= top:
            paths = tuple(matches[place].path for place in copies)
            folded.append(replace(matches[first], is_query=is_query, copies=paths))
    return folded

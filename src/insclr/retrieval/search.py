"""Search a store: queries and options in, matches with scores out. Shell, Python and page all call `search`."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from insclr.arrays import Descriptors
from insclr.data.decode import Box
from insclr.data.formats import split_part
from insclr.data.given import is_single
from insclr.data.images import ImageList, list_images
from insclr.data.table import one_line
from insclr.describe.describer import Describer
from insclr.errors import UserError
from insclr.model.stored import with_weights
from insclr.options import MAX_TOP, SearchOptions
from insclr.retrieval.local_evidence import VERIFIED, LocalEvidence
from insclr.retrieval.local_features import LocalFeatures
from insclr.retrieval.local_store import local_evidence_of
from insclr.retrieval.query import Query, UnreadableQuery, describer_of, image_query
from insclr.retrieval.ranking import (
    Known,
    Results,
    compare_with_set,
    find_unlike,
    join_queries,
    put_first,
    search_best_region,
    search_nearest,
    shift_away,
)
from insclr.retrieval.score import LIKELY, Band, score_curve_of
from insclr.retrieval.verification import drop_shared_points
from insclr.store import Condition, Store, open_store, parse_where

_log = logging.getLogger(__name__)

# A re-ranker sees so many of the nearest rows, not the whole collection.
_SHORTLIST = 500
_SPARE = 2  # results ranked for each one asked for, since copies are folded into one
# Cosine from which on two results count as one photo. A copy made smaller or compressed anew stays above it; `insclr
# duplicates`, which has the time to compare pixels, proposes pairs from 0.95 on.
SAME_PHOTO = 0.99


@dataclass(frozen=True, repr=False)
class Match:
    """One image found: its cosine, the calibrated score and what that means."""

    id: int
    path: str
    similarity: float
    score: float
    likely: bool  # more likely right than wrong
    columns: Mapping[str, str]
    band: Band
    is_query: bool = False  # the image that was searched for: no answer
    copies: tuple[str, ...] = ()  # paths of further results that show the same image
    box: Box | None = None  # where the instance is, as fractions of the image, where that is known
    inliers: int | None = None  # matched points that prove it, where it was verified

    def __repr__(self) -> str:
        """Short enough for a list of them."""
        return f"Match({self.path!r}, {'query' if self.is_query else self.band}, score {self.score:.2f})"

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
        """A line for each match: score, cosine, band, path, number of further copies, and what proves it."""
        lines = ["score  cosine  band   path"]
        for match in self.matches:
            band = "query" if match.is_query else match.band
            count = len(match.copies)
            copies = f"  (+{count} cop{'y' if count == 1 else 'ies'})" if count else ""
            numbers = f"{match.score:5.2f}  {match.similarity:6.3f}  {band:5s}"
            lines.append(f"{numbers}  {one_line(match.path)}{copies}{match.proof()}")
        return "\n".join(lines if self.matches else ["nothing found"])


@contextmanager
def open_for_search(
    uri: str | Path, options: SearchOptions, expected: int
) -> Iterator[tuple[Store, Describer]]:
    """The store at `uri`, and the describer of its model for so many queries."""
    with closing(open_store(uri)) as store:
        parse_where(options.where, store.columns())  # refuses a wrong filter before the model is loaded
        describer = describer_of(
            store.info,
            with_weights(options.model, options.weights),
            workers=0,
            device=options.device,
            engine=options.engine,
            expected=expected,
        )
        yield store, describer


def search_files(
    uri: str | Path,
    query: Path,
    options: SearchOptions,
    box: Box | None = None,
    *,
    unlike: Sequence[Path] = (),
    read_known: Callable[[Store], Known] | None = None,
) -> Iterator[Found]:
    """Search the store at `uri` for an image, or for every image of a folder or list, one after the other.

    An unreadable image is a UserError when it is the only one; among others it has a reason in place of matches.
    """
    single = is_single(query)
    images = ImageList(query.parent, (query.name,)) if single else list_images(query)
    with open_for_search(uri, options, len(images)) as (store, describer):
        known, others = read_known(store) if read_known else None, [image_query(one) for one in unlike]
        for i, path in enumerate(images.paths):
            try:
                asked = [image_query(images.file(i), box)]
                matches = search(store, describer, asked, options, unlike=others, known=known)
            except UnreadableQuery as bad:
                if single:
                    raise
                yield Found(path, error=bad.reason)
            else:
                yield Found(str(query) if single else path, tuple(matches))


def search(
    store: Store,
    describer: Describer,
    queries: Sequence[Query],
    options: SearchOptions,
    *,
    unlike: Sequence[Query] = (),
    known: Known | None = None,
) -> list[Match]:
    """Search for all queries together, as images of one instance (the paper's query set).

    Copies of an image are one match. Matches that are a query or hold one are marked and come besides the `top`
    others. Images of `unlike` are of another instance: they are left out, and what is like them comes later. What
    people know of a result decides its score.
    """
    if not queries:
        raise UserError("nothing to search for: give at least one query")
    where = parse_where(options.where, store.columns())
    own_size = options.ranking == "regions"
    # One by one, so that one decoded image is held at a time.
    vectors = np.concatenate([one.descriptor(store, describer, own_size=own_size) for one in queries])
    others = [one.descriptor(store, describer) for one in unlike]
    hashes = {one.hash for one in queries if one.hash}
    wholes = [one.part_of[1] for one in queries if one.part_of is not None and one.part_of[0] is store]
    hashes |= {row.image.hash for row in wholes}
    most = min(MAX_TOP, _SPARE * options.top + len(hashes))
    local = local_evidence_of(store, options.local)
    depth = max(most, _SHORTLIST if options.rerank else 0, VERIFIED if local else 0)
    moved = vectors
    if options.ranking == "regions":
        found = search_best_region(store, vectors, depth, where)
    else:
        moved = shift_away(vectors, others)
        found = search_nearest(store, moved, depth, where, options.aggregate)
        found = put_first(store, vectors, found, [row.id for row in wholes], only_found=where is not None)
    if options.rerank:
        found = _rerank(store, vectors, found, options.rerank)
    elif local is not None:
        features = [one.local_features() for one in queries]
        for other in unlike:
            features = [drop_shared_points(one, other.local_features()) for one in features]
        found = _add_evidence(store, local, features, moved, found, where, options.aggregate)
    if others:  # people see how similar a result is to the query itself
        found = replace(found, similarities=compare_with_set(store, found.ids, vectors, options.aggregate))
    return _make_matches(store, found, most, options, hashes, known, others)


def _rerank(store: Store, queries: Descriptors, found: Results, name: str) -> Results:
    """Order the shortlist anew; a query set is re-ranked by its mean."""
    # Imported here: a plain search need not wait for what re-ranking computes with.
    from insclr.retrieval.rerank import RERANKERS, Ranking

    if len(found.ids) < 2:
        return found
    # (1, shortlist): the shortlist is the re-ranker's whole database
    places = np.arange(len(found.ids))[None]
    shortlist = Ranking(places, found.similarities[None].astype(np.float32))
    reranked = RERANKERS[name](join_queries(queries), store.descriptors(found.ids), shortlist)
    return found.reorder(reranked.ids[0])


def _add_evidence(
    store: Store,
    local: LocalEvidence,
    features: Sequence[LocalFeatures],
    vectors: Descriptors,
    found: Results,
    where: Condition | None,
    aggregate: str,
) -> Results:
    """The results and the images with most votes, by cosine and matched points together.

    Where no query has points (one colour, blurred, tiny), the results stay as they are.
    """
    if not any(map(len, features)):
        _log.warning(
            "the query has no points to match (one colour, blurred, tiny, or all in what is not meant): "
            "cosines alone rank the results"
        )
        return found
    votes = local.vote(features)
    further = np.setdiff1d(votes.ids, found.ids)
    if where is not None:  # only the store can evaluate a filter
        further = np.intersect1d(further, store.search(join_queries(vectors), MAX_TOP, where).ids[0])
    if len(further):
        found = found.append(further, compare_with_set(store, further, vectors, aggregate))
    scores = score_curve_of(store).score(found.similarities)
    return local.rank(votes, found, scores)


def _make_matches(
    store: Store,
    found: Results,
    most: int,
    options: SearchOptions,
    queries: set[str],
    known: Known | None = None,
    unlike: Sequence[Descriptors] = (),
) -> list[Match]:
    """The first `top` images among the results, each with its copies, and besides them the queries themselves."""
    curve = score_curve_of(store)
    scores = curve.score(found.similarities) if found.scores is None else found.scores
    order = np.flatnonzero(~find_unlike(store, found, unlike, SAME_PHOTO))
    if known is not None and queries:
        images = {row.id: row.image.hash for row in store.rows(found.ids.tolist())}
        relations = np.array([known.relation(queries, images.get(one, "")) for one in found.ids.tolist()])
        scores = np.where(relations == 0, scores, relations > 0)
        order = order[np.argsort(-relations[order], kind="stable")]  # the same first, different ones last
    places = order[scores[order] >= options.min_score][:most].tolist()
    ids = found.ids.tolist()
    rows = {row.id: row.image for row in store.rows([ids[i] for i in places])}
    places = [i for i in places if ids[i] in rows]
    if not places:
        return []
    contents = [rows[ids[i]].hash for i in places]
    matches: list[Match] = []
    others = 0
    photos = [photo_of_part(rows[ids[i]].path) for i in places]
    for group in group_copies(contents, store.descriptors([ids[i] for i in places]), photos):
        is_query = any(contents[place] in queries for place in group)
        others += not is_query
        if not is_query and others > options.top:
            continue
        first, *copies = (places[place] for place in group)
        score = float(scores[first])
        matches.append(
            Match(
                ids[first],
                rows[ids[first]].path,
                float(found.similarities[first]),
                score,
                score >= LIKELY,
                rows[ids[first]].columns,
                curve.band(score),
                is_query,
                tuple(rows[ids[i]].path for i in copies),
                found.box(first),
                found.inliers(first),
            )
        )
    return matches


def group_copies(
    hashes: Sequence[str], descriptors: Descriptors, photos: Sequence[str] = ()
) -> list[list[int]]:
    """Places of results grouped by photo: each group's first place stands for it, in the order of the results.

    A result joins the first group whose first member has the same content hash or nearly the same descriptor. Parts
    of one photo, which `photos` names (empty for a whole one), are never in one group.
    """
    contents = np.unique(np.array(hashes), return_inverse=True)[1]  # (results,) equal where the hash is
    alike = (descriptors @ descriptors.T >= SAME_PHOTO) | (
        contents[:, None] == contents
    )  # (results, results)
    left = np.ones(len(hashes), dtype=bool)
    groups = []
    for place in range(len(hashes)):
        if left[place]:
            left[place] = False
            copies = np.array(one_of_each(np.flatnonzero(alike[place] & left), photos, place), dtype=np.int64)
            left[copies] = False
            groups.append([place, *copies.tolist()])
    return groups


def one_of_each(places: Iterable[int], photos: Sequence[str], first: int = -1) -> list[int]:
    """The places, of those that are parts of one photo only one, and none of the photo of the place `first`."""
    seen = {photos[first]} if photos and first >= 0 else set()
    kept = []
    for place in map(int, places):
        photo = photos[place] if photos else ""
        if not photo or photo not in seen:
            kept.append(place)
            seen.add(photo)
    return kept


def photo_of_part(path: str) -> str:
    """The photo that an image is a part of; empty for a whole one."""
    photo, box = split_part(path)
    return "" if box is None else str(photo)

"""Stores: index, search, duplicates, cluster, what people said of them, and scores by that."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insclr.api.models import AnyModel, load, require
from insclr.data.decode import Box
from insclr.data.given import Images, Photo, QueryPhoto, as_list, is_several
from insclr.data.table import read_table, text_of_cell
from insclr.describe.describer import ModelDescriber
from insclr.errors import UserError
from insclr.retrieval.index import IndexReport
from insclr.retrieval.index_shards import index_shard
from insclr.retrieval.local.extractor import open_extractor
from insclr.retrieval.search import Match, Search, search_photos
from insclr.retrieval.store_describer import describer_of
from insclr.shards import Shard, shard_of
from insclr.store import open_store

if TYPE_CHECKING:
    from insclr.retrieval.score import Answer, ScoreCurve
    from insclr.store import Store


def index(
    model: AnyModel,
    images: Images,
    store: str | Path,
    *,
    prune: bool = False,
    verify: bool = False,
    regions: bool = False,
    local: bool = False,
    local_features: str = "",
    local_matcher: str = "",
    asmk: bool = False,
    size: int = 0,
    device: str = "auto",
    engine: str = "auto",
    shard: str | Shard = "",
) -> IndexReport:
    """Make images searchable in a store (a folder, or a Milvus address): adds what is new, follows what changed.

    `prune` drops rows whose image is no longer listed; `verify` reads every file instead of trusting its time.
    `regions`, `local` and `asmk` keep parts of images too, for `search` by them; `size` is the side at which images
    are described. `local_features` and `local_matcher` are files with the weights of DISK and LightGlue, in place of
    SIFT. With `shard` ("2/4") one of several processes takes its share of the images; the last one writes the store,
    and the reports of the others say in `waits_for` who will, or has.

    >>> report = insclr.index("RUN", "PHOTOS", "STORE")
    >>> report.total, list(report.skipped)
    (24, [])
    """
    own = shard if isinstance(shard, Shard) else shard_of(shard) if shard else Shard()
    require(model, device, engine)
    extractor = open_extractor(local_features, local_matcher)  # refuses a wrong file before a model is loaded
    listed = as_list(images)
    loaded = load(model, device=device, engine=engine)
    name = str(model) if isinstance(model, str | Path) else loaded.source
    describer = ModelDescriber(name, loaded, size=size)
    return index_shard(
        describer,
        listed,
        store,
        own,
        prune=prune,
        verify=verify,
        regions=regions,
        local=local,
        extractor=extractor,
        asmk=asmk,
    )


def search(
    store: str | Path,
    query: Photo | Sequence[Photo],
    *,
    box: Box | None = None,
    top: int = 20,
    min_score: float = 0.0,
    where: str = "",
    rerank: str = "",
    ranking: str = "global",
    model: str = "",
    device: str = "auto",
    engine: str = "auto",
) -> list[Match]:
    """The images of a store that show the thing in a photo, best first; several photos are one thing seen many times.

    `box` is the part of the photo that is meant: left, top, right, bottom in pixels. `where` filters by columns,
    such as "year >= 1900". `ranking` is by whole images ("global") or by parts of them ("regions", "asmk"), as far as
    they were indexed. `model` names the store's model where it has moved. The photo itself, where the store has it,
    is marked (`is_query`) and comes besides the `top` others.

    >>> matches = insclr.search("STORE", "PHOTOS/thing3-1.png", top=4)
    >>> matches[0].path, matches[0].likely
    ('thing3-1.png', True)
    """
    asked = Search(top=top, min_score=min_score, where=where, rerank=rerank, ranking=ranking)
    queries: list[Any] = list(query) if is_several(query) else [query]
    opened = open_store(store)
    try:
        describer = describer_of(
            opened.info, model, workers=0, device=device, engine=engine, expected=len(queries)
        )
        photos = [QueryPhoto(one) for one in queries]
        return search_photos(opened, describer, photos, asked, box)
    finally:
        opened.close()


def duplicates(store: str | Path) -> list[list[str]]:
    """Groups of near-identical images of a store, by their paths, the largest group first.

    >>> insclr.duplicates("STORE")
    []
    """
    from insclr.retrieval.duplicates import duplicates as find_duplicates

    opened = open_store(store)
    try:
        return [[row.image.path for row in group] for group in find_duplicates(opened)]
    finally:
        opened.close()


def cluster(store: str | Path, out: str | Path | None = None, *, min_size: int = 2) -> list[list[str]]:
    """Groups of images of the same thing, by their paths: the largest group first, in it the most typical image.

    `out` is a folder for clusters.csv and contact sheets.

    >>> groups = insclr.cluster("STORE", "GROUPS")
    >>> len(groups[0]) >= 2
    True
    """
    from insclr.feedback.cluster import cluster as find_clusters
    from insclr.report.cluster_sheets import write_clusters

    opened = open_store(store)
    try:
        groups = find_clusters(opened, min_size)
        if out is not None:
            write_clusters(groups, opened, Path(out))
        return [[row.image.path for row in group.rows] for group in groups]
    finally:
        opened.close()


def names(store: str | Path, source: str | Path = "") -> dict[str, str]:
    """The name of every photo that has one, by its path; those that joined a named thing by their score among them.

    `source` names photos first: a CSV (path, name), another store, or the word "folders" for the photos' folders.

    >>> insclr.names("STORE", "names.csv")["thing3-1.png"]  # a CSV of path and name
    'Blue vase'
    """
    from insclr.feedback.names import import_names, named_rows

    opened = open_store(store)
    try:
        if source:
            import_names(opened, str(source))
        return {row.image.path: name for name, row, _ in named_rows(opened)}
    finally:
        opened.close()


def answers(
    store: str | Path, query: str = "", *, same: Sequence[str] = (), different: Sequence[str] = ()
) -> list[str]:
    """Say which photos show the same thing as `query` and which do not, by their paths in the store.

    Gives back the contradictions in all that was said; `insclr answers undo` takes an answer back, `insclr.train`
    learns from them with `answers=STORE`.

    >>> insclr.answers("STORE", "thing3-1.png", same=["thing3-2.png"], different=["thing1-0.png"])
    []
    """
    from insclr.feedback.entries import answer
    from insclr.feedback.feedback import read_feedback
    from insclr.feedback.links import Links

    opened = open_store(store)
    try:
        rows = opened.rows_by_path()
        missing = [path for path in (query, *same, *different) if path and path not in rows]
        if missing:
            raise UserError(f"{store} has no photo {missing[0]!r}: name photos as `insclr search` does.")
        if query:
            alike, others = ([rows[path].image.hash for path in paths] for paths in (same, different))
            opened.append([answer(rows[query].image.hash, alike, others)])
        found = Links(read_feedback(opened).links).unresolved()
        return [
            f"{one.link.source} does not fit {', '.join(each.source for each in one.chain)}" for one in found
        ]
    finally:
        opened.close()


def calibrate(store: str | Path, *, column: str = "", answers: str | Path | None = None) -> "ScoreCurve":
    """Make the scores of a store agree with what people know; without labels, measure its photos anew.

    `column` names the thing in some of the photos. `answers` is a CSV of pairs: one, other (paths in the store), same
    (yes or no).

    >>> insclr.calibrate("STORE", answers="pairs.csv").answers  # a CSV of one, other and same
    2
    """
    from insclr.retrieval.score import answers_from_column, calibrate_from_answers

    if column and answers:
        raise UserError("Scores are calibrated by a column or by answers, not by both: leave one out.")
    opened = open_store(store)
    try:
        with opened.writing():
            if column and column not in opened.columns():
                known = ", ".join(opened.columns()) or "none"
                raise UserError(f"{store} has no column {column!r}; it has: {known}.")
            pairs = answers_from_column(opened, column) if column else _read_pairs(opened, answers)
            return calibrate_from_answers(opened, pairs)
    finally:
        opened.close()


def _read_pairs(store: "Store", file: str | Path | None) -> "list[Answer]":
    """The answered pairs of a CSV; none without one."""
    from insclr.retrieval.score import Answer

    if file is None:
        return []
    rows = store.rows_by_path()
    found = []
    for number, cells in read_table(file, ("one", "other", "same")):
        one, other = text_of_cell(cells["one"]), text_of_cell(cells["other"])
        same = cells["same"].strip().lower()
        if same not in ("yes", "no"):
            raise UserError(f"{file}, line {number}: same must be yes or no, not {same!r}.")
        missing = [path for path in (one, other) if path not in rows]
        if missing:
            raise UserError(f"{file}, line {number}: {missing[0]} is not in {store.uri}.")
        found.append(Answer(rows[one].id, rows[other].id, same == "yes"))
    return found

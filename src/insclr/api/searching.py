"""Functions on stores: index, search, duplicates, cluster, names, answers, calibrate."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insclr.api.models import AnyModel, load, require_model
from insclr.data.boxes import list_boxes
from insclr.data.decode import Box
from insclr.data.given import Images, Photo, as_list, is_several
from insclr.data.table import read_table, text_of_cell
from insclr.describe.describer import Describer
from insclr.errors import UserError
from insclr.feedback.feedback import read_known
from insclr.model.stored import with_weights
from insclr.options import IndexOptions, SearchOptions, show_options
from insclr.retrieval.index import IndexReport, index_images
from insclr.retrieval.query import image_query
from insclr.retrieval.search import Match, open_for_search
from insclr.retrieval.search import search as search_store
from insclr.shards import Shard, shard_of
from insclr.store import is_store, open_store

if TYPE_CHECKING:
    from insclr.retrieval.score import Answer, ScoreCurve
    from insclr.store import Store


@show_options
def index(
    model: AnyModel,
    images: Images,
    store: str | Path,
    options: IndexOptions = IndexOptions(),
    **changes: Any,
) -> IndexReport:
    """Make images searchable in a store (a folder, or a Milvus address): adds new ones, updates changed ones.

    A store as `model` stands for the model that it has. `prune` drops rows whose image is no longer listed; `verify`
    reads every file instead of trusting its time. `regions` and `local` keep parts of images too, for `search` by
    them; `size` is the side at which images are described. With `boxes` each box of a file (COCO or MegaDetector
    JSON, CSV) is a row. With `shard` ("2/4") one of several processes takes its share of the images; the last one
    writes the store, and `waits_for` in the reports of the others names the one that will, or has.

    >>> report = insclr.index("RUN", "PHOTOS", "STORE")
    >>> report.total, list(report.skipped)
    (24, [])
    """
    given = options.change(changes)
    shard = shard_of(given.shard) if given.shard else Shard()  # one rank of a script may index alone
    if isinstance(model, str | Path) and is_store(model):
        with closing(open_store(model)) as opened:
            model = opened.info.model
    require_model(model, given)
    listed = as_list(images)
    if given.boxes is not None:
        listed = list_boxes(given.boxes, listed, given.box_confidence)
    loaded = load(model, weights=given.weights, device=given.device, engine=given.engine)
    name = with_weights(model, given.weights) if isinstance(model, str | Path) else loaded.source
    describer = Describer(name, loaded, size=given.size)
    return index_images(describer, listed, store, given, shard=shard)


@show_options
def search(
    store: str | Path,
    query: Photo | Sequence[Photo],
    options: SearchOptions = SearchOptions(),
    *,
    box: Box | None = None,
    unlike: Photo | Sequence[Photo] = (),
    **changes: Any,
) -> list[Match]:
    """The images of a store that show the instance in an image, best first; several are images of one instance.

    `box` is the part of the image that is meant: left, top, right, bottom in pixels. `unlike` are images of another
    instance: they are left out, and what is like them comes later. Names and answers decide scores. `where` filters
    by columns, such as "year >= 1900". `ranking` is by whole images ("global") or by parts of them ("regions"), as
    far as they were indexed. `model` names the store's model where it has moved. The query itself, where the store
    has it, is marked (`is_query`) and comes besides the `top` others.

    >>> matches = insclr.search("STORE", "PHOTOS/thing3-1.png", top=4)
    >>> matches[0].path, matches[0].likely
    ('thing3-1.png', True)
    """
    given = options.change(changes)
    queries: list[Any] = list(query) if is_several(query) else [query]
    others: list[Any] = list(unlike) if is_several(unlike) else [unlike]
    with open_for_search(store, given, len(queries) + len(others)) as (opened, describer):
        return search_store(
            opened,
            describer,
            [image_query(one, box) for one in queries],
            given,
            unlike=[image_query(one) for one in others],
            known=read_known(opened),
        )


def duplicates(store: str | Path) -> list[list[str]]:
    """Groups of near-identical images of a store, by their paths, the largest group first.

    >>> insclr.duplicates("STORE")
    []
    """
    from insclr.retrieval.duplicates import duplicates as find_duplicates

    with closing(open_store(store)) as opened:
        return [[row.image.path for row in group] for group in find_duplicates(opened)]


def cluster(store: str | Path, out: str | Path | None = None, *, min_size: int = 2) -> list[list[str]]:
    """Groups of images of the same instance, by their paths: the largest group first, in it the most typical image.

    Names and answers hold: images that people put together or told apart are so. `out` is a folder for clusters.csv
    and contact sheets.

    >>> groups = insclr.cluster("STORE", "GROUPS")
    >>> len(groups[0]) >= 2
    True
    """
    from insclr.feedback.feedback import build_links, read_feedback
    from insclr.feedback.groups import cluster as find_clusters
    from insclr.report.cluster_sheets import write_clusters

    with closing(open_store(store)) as opened:
        feedback = read_feedback(opened)
        groups = find_clusters(opened, min_size, build_links(feedback))
        if out is not None:
            write_clusters(groups, opened, Path(out), feedback.name_of)
        return [[row.image.path for row in group.rows] for group in groups]


def names(store: str | Path, source: str | Path = "") -> dict[str, str]:
    """The name of every image that has one, by its path, also of those that joined a named thing by their score.

    `source` names images first: a CSV (path, name), another store, or the word "folders" for the images' folders.

    >>> insclr.names("STORE", "names.csv")["thing3-1.png"]  # a CSV of path and name
    'Blue vase'
    """
    from insclr.feedback.name_files import import_names
    from insclr.feedback.names import named_rows

    with closing(open_store(store)) as opened:
        if source:
            import_names(opened, str(source))
        return {row.image.path: name for name, row, _ in named_rows(opened)}


def answers(
    store: str | Path, query: str = "", *, same: Sequence[str] = (), different: Sequence[str] = ()
) -> list[str]:
    """Record which images show the same thing as `query` and which do not, by their paths in the store.

    Returns the contradictions among all answers; `insclr answers undo` undoes an answer, `insclr.train`
    learns from them with `answers=STORE`.

    >>> insclr.answers("STORE", "thing3-1.png", same=["thing3-2.png"], different=["thing1-0.png"])
    []
    """
    from insclr.feedback.entries import answer
    from insclr.feedback.feedback import read_feedback
    from insclr.feedback.links import Links

    with closing(open_store(store)) as opened:
        rows = opened.rows_by_path()
        missing = [path for path in (query, *same, *different) if path and path not in rows]
        if missing:
            raise UserError(
                f"{store} has no image {missing[0]!r}: name images as `insclr search` prints them."
            )
        if query:
            alike, others = ([rows[path].image.hash for path in paths] for paths in (same, different))
            opened.append([answer(rows[query].image.hash, alike, others)])
        found = Links(read_feedback(opened).links).find_unresolved()
        return [
            f"{one.link.source} does not fit {', '.join(each.source for each in one.chain)}" for one in found
        ]


def calibrate(store: str | Path, *, column: str = "", answers: str | Path | None = None) -> "ScoreCurve":
    """Make the scores of a store agree with what people know; without labels, measure its images anew.

    `column` names the instance in some of the images. `answers` is a CSV of pairs: one, other (paths in the store),
    same (yes or no).

    >>> insclr.calibrate("STORE", answers="pairs.csv").answers  # a CSV of one, other and same
    2
    """
    from insclr.retrieval.local_store import learn_from_answers
    from insclr.retrieval.score import answers_from_column, calibrate_from_answers

    if column and answers:
        raise UserError("Scores are calibrated by a column or by answers, not by both: leave one out.")
    with closing(open_store(store)) as opened, opened.writing():
        if column and column not in opened.columns():
            known = ", ".join(opened.columns()) or "none"
            raise UserError(f"{store} has no column {column!r}; it has: {known}.")
        pairs = answers_from_column(opened, column) if column else _read_pairs(opened, answers)
        curve = calibrate_from_answers(opened, pairs)
        learn_from_answers(opened, pairs)
        return curve


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

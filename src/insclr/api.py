"""What the command line can, as functions: `import insclr` shows them all.

A model is what `load` or `insclr.train` gives, or what names one: a run folder, a model file or pretrained:NAME.
Images are a folder, a list file, an `ImageList`, one path or several. The examples assume a folder PHOTOS and the run
RUN of `insclr.train`.

What can be wrong with a request is told before torch is imported: most of it is imported where it is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from insclr.data.decode import Box
from insclr.data.given import Images, Photo, Picture, as_list, as_picture, in_memory, is_several
from insclr.data.labels import read_labels
from insclr.data.skipped import Skipped
from insclr.data.workers import default_workers
from insclr.engine.choose import require_engine
from insclr.engine.opened import OpenedModel, open_in_memory, open_model
from insclr.errors import UserError
from insclr.model.stored import find_model_file, with_weights
from insclr.progress import working
from insclr.recipe import DescriptorRecipe
from insclr.retrieval.describe import describe_images, descriptor_settings
from insclr.retrieval.describer import ModelDescriber, describer_of
from insclr.retrieval.index import IndexReport, index_images
from insclr.retrieval.local.features import require_opencv
from insclr.retrieval.local.query import details_of
from insclr.retrieval.local.ranking import check_ranking
from insclr.retrieval.reranker_names import require_known, verifier_name
from insclr.retrieval.search import Match, Search, search_set
from insclr.retrieval.store import open_store
from insclr.shards import shard_of

if TYPE_CHECKING:
    from insclr.data.check import CheckReport
    from insclr.evaluation.compare import Comparison
    from insclr.evaluation.results import LabelResult, ProtocolResult
    from insclr.model.model_file import Model

AnyModel: TypeAlias = "Model | OpenedModel | str | Path"


@dataclass(frozen=True)
class Embedded:
    """Unit vectors (N, D), the path of each, and (path, reason) of the images that could not be read.

    `not_read` counts by kind what else the folder holds, such as videos where their reader is not installed.
    """

    paths: tuple[str, ...]
    vectors: NDArray[np.float32]
    unreadable: tuple[tuple[str, str], ...] = ()
    not_read: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)


class Describing(TypedDict, total=False):
    """How a model is loaded and describes images: the options of `load`."""

    weights: str | Path
    size: int
    fit: str
    scales: str | Sequence[float]
    device: str
    engine: str


def load(
    model: AnyModel,
    *,
    weights: str | Path = "",
    size: int = 0,
    fit: str = "",
    scales: str | Sequence[float] = "",
    device: str = "auto",
    engine: str = "auto",
) -> OpenedModel:
    """The model of this name, ready to describe images: a run folder, a model file, or pretrained:NAME.

    `weights` is a file for a pretrained network. `size`, `fit` ("longest" or "square") and `scales` change how it
    describes images. `engine` runs the network: auto, torch, onnx or openvino; `.network` is torch's.

    >>> model = insclr.load("pretrained:efficientnet_lite0", size=160)
    >>> model.recipe.descriptor.size
    160
    """
    listed = scales if isinstance(scales, str) else ",".join(map(str, scales))
    unchanged = not (size or fit or listed) and device == engine == "auto"
    if isinstance(model, OpenedModel) and unchanged:
        return model

    def settings(remembered: DescriptorRecipe) -> DescriptorRecipe:
        return descriptor_settings(remembered, size, fit, listed)

    if isinstance(model, str | Path):
        return open_model(with_weights(model, weights), engine=engine, device=device, settings=settings)
    given = model.as_model() if isinstance(model, OpenedModel) else model
    return open_in_memory(given, engine=engine, device=device, settings=settings)


def _require(model: AnyModel, device: str = "auto", engine: str = "auto", **_: object) -> None:
    """Refuse names that nothing has, before what bears them is loaded."""
    require_engine(engine, device)
    if isinstance(model, str | Path):
        find_model_file(model)


def check(images: Images, *, workers: int = -1) -> "CheckReport":
    """Look at every image: how many can be read, their formats and sizes, exact duplicates, what is not read and why.

    >>> report = insclr.check("PHOTOS")
    >>> report.usable, report.unreadable
    (24, ())
    """
    from insclr.data.check import check_images

    return check_images(as_list(images), default_workers() if workers < 0 else workers)


def embed(
    model: AnyModel,
    images: Images | Picture | Sequence[Picture],
    *,
    device: str = "auto",
    engine: str = "auto",
) -> Embedded:
    """Describe images by unit vectors: their inner product says how likely two show the same thing.

    Takes a folder, a list file, one path, several paths, or images in memory (PIL or uint8 arrays). What cannot be
    read has no row: it is listed in `unreadable` with the reason.

    >>> found = insclr.embed("RUN", "PHOTOS")
    >>> found.vectors.shape, len(found.paths), found.unreadable
    ((24, 512), 24, ())
    """
    _require(model, device, engine)
    pictures = in_memory(images)
    listed = as_list(images) if pictures is None else None  # type: ignore[arg-type]
    loaded = load(model, device=device, engine=engine)
    describer, skipped = ModelDescriber(loaded.source, loaded), Skipped()
    if pictures is not None:
        return Embedded(tuple(str(number) for number in range(len(pictures))), describer.images(pictures))
    assert listed is not None
    vectors, _ = describer.files(listed, skipped)
    readable = [i for i, path in enumerate(listed.paths) if path not in skipped]
    paths = tuple(listed.paths[i] for i in readable)
    return Embedded(paths, vectors[readable], tuple(skipped), listed.not_read)


def index(
    model: AnyModel,
    images: Images,
    store: str | Path,
    *,
    prune: bool = False,
    verify: bool = False,
    regions: bool = False,
    local: bool = False,
    asmk: bool = False,
    size: int = 0,
    device: str = "auto",
    engine: str = "auto",
) -> IndexReport:
    """Make images searchable in a store (a folder, or a Milvus address): adds what is new, follows what changed.

    `prune` drops rows whose image is no longer listed; `verify` reads every file instead of trusting its time.
    `regions`, `local` and `asmk` keep parts of images too, for `search` by them; `size` is the side at which images
    are described.

    >>> report = insclr.index("RUN", "PHOTOS", "STORE")
    >>> report.total, list(report.skipped)
    (24, [])
    """
    _require(model, device, engine)
    listed = as_list(images)
    loaded = load(model, device=device, engine=engine)
    describer = ModelDescriber(loaded.source, loaded, size=size)
    return index_images(
        describer, listed, store, prune=prune, verify=verify, regions=regions, local=local, asmk=asmk
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
    they were indexed. `model` names the store's model where it has moved.

    >>> matches = insclr.search("STORE", "PHOTOS/thing3-1.png", top=4)
    >>> matches[0].path, matches[0].likely
    ('thing3-1.png', True)
    """
    asked = Search(top=top, min_score=min_score, where=where, rerank=rerank, ranking=ranking)
    queries: list[Any] = list(query) if is_several(query) else [query]
    opened = open_store(store)
    try:
        describer = describer_of(opened.info, model, workers=0, device=device, engine=engine)
        images = [as_picture(one, None if box else describer.longest) for one in queries]
        details = details_of(
            describer,
            images,
            box,
            [partial(as_picture, one) for one in queries],
            ranking=ranking,
            verifier=asked.verifier,
        )
        vectors = describer.images(images, [box] * len(images), own_size=ranking == "regions")
        return search_set(opened, vectors, asked, details)
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
    from insclr.report.cluster_sheets import write_clusters
    from insclr.retrieval.cluster import cluster as find_clusters

    opened = open_store(store)
    try:
        groups = find_clusters(opened, min_size)
        if out is not None:
            write_clusters(groups, opened, Path(out))
        return [[row.image.path for row in group.rows] for group in groups]
    finally:
        opened.close()


def evaluate(
    model: AnyModel,
    labels: str | Path | None = None,
    *,
    protocol: str = "",
    root: str | Path | None = None,
    ground_truth: str | Path | None = None,
    distractors: str | Path | None = None,
    rerank: str = "",
    ranking: str = "global",
    region_size: int = 0,
    allow_missing: bool = False,
    shard: str = "",
    parts: str | Path | None = None,
    **describing: Unpack[Describing],
) -> "LabelResult | ProtocolResult":
    """Measure a model: leave-one-out over a labels file (path, instance), or a public `protocol` under `root`.

    With labels, `ranking` may be by parts of images: "asmk", or "regions" of index images described at `region_size`.
    `describing` is for `load`: weights, size, fit, scales, device, engine.

    Descriptors of whole images are kept in the folder `parts`. Of several processes that share it each describes its
    `shard` ("2/4"), and the last one measures; the others raise `OtherShardsMissing`.

    >>> result = insclr.evaluate("RUN", "PHOTOS/labels.csv")
    >>> 0 < result.map <= 100
    True
    """
    if (labels is None) == (not protocol) or (protocol and root is None):
        raise UserError("Say what to measure: either --labels CSV, or --protocol NAME --root DIR.")
    own = shard_of(shard)
    if parts is None and not own.whole:
        raise UserError(
            "Say with --parts in which folder the shards leave their descriptors: all must see it."
        )
    _require(model, **describing)
    _require_ranking(rerank, ranking, protocol)
    truth = read_labels(labels) if labels is not None else None

    from insclr.evaluation.distractors import read_distractors
    from insclr.evaluation.evaluate import require_images
    from insclr.evaluation.measure import measure_labels, measure_protocol
    from insclr.evaluation.protocols import load_protocol
    from insclr.evaluation.split import SplitDescriptors
    from insclr.retrieval.rerank import rerank as find_reranker

    verifier = verifier_name(rerank)
    reranker = find_reranker(rerank) if rerank and not verifier else None
    if truth is not None:
        require_images(truth, allow_missing=allow_missing)
    else:
        assert root is not None
        benchmark = load_protocol(protocol, Path(root), None if ground_truth is None else Path(ground_truth))
    loaded = load(model, **describing)
    describe = SplitDescriptors(loaded, None if parts is None else Path(parts), own)
    if truth is not None:
        describe.share([(truth.images, truth.query_boxes)])
        return measure_labels(
            loaded,
            truth,
            reranker,
            ranking=ranking,
            verifier=verifier,
            region_size=region_size,
            allow_missing=allow_missing,
            describe=describe,
        )
    others = read_distractors(Path(distractors), describe.blocks) if distractors else None
    return measure_protocol(benchmark, describe, reranker, others, allow_missing=allow_missing)


def _require_ranking(rerank: str, ranking: str, protocol: str) -> None:
    """Refuse a re-ranker or a ranking that nothing has, or that cannot be measured here."""
    require_known(rerank)
    check_ranking(ranking)
    verifier = verifier_name(rerank)
    if protocol and (verifier or ranking != "global"):
        raise UserError("Verification and rankings by parts are measured with --labels CSV.")
    if verifier == "geometric":
        require_opencv()


def compare(
    models: Mapping[str, AnyModel] | Sequence[str | Path],
    labels: str | Path,
    *,
    by: Literal["query", "instance"] = "query",
    page: str | Path | None = None,
    allow_missing: bool = False,
    **describing: Unpack[Describing],
) -> "Comparison":
    """Models side by side on a labels file, with paired bootstrap intervals; `by` says what is resampled.

    `page` is an HTML file for the queries where the first and the last model differ. `describing` is for `load`.

    >>> comparison = insclr.compare(["pretrained:efficientnet_lite0", "RUN"], "PHOTOS/labels.csv")
    >>> print(comparison.table().splitlines()[0].split()[0])
    mAP
    """
    named: Mapping[str, Any] = models if isinstance(models, Mapping) else {str(one): one for one in models}
    if len(named) < 2 or len(named) < len(models):
        raise UserError("Name two or more different models to compare.")
    for model in named.values():
        _require(model, **describing)
    truth = read_labels(labels)

    from insclr.evaluation.compare import compare as compare_results
    from insclr.evaluation.evaluate import evaluate_labels, require_images
    from insclr.report.comparison import write_comparison

    require_images(truth, allow_missing=allow_missing)
    results = {}
    for name, model in named.items():
        vectors = describe_images(load(model, **describing), truth.images, boxes=truth.query_boxes)
        results[name] = evaluate_labels(vectors, truth, allow_missing=allow_missing)
    with working("comparing"):
        comparison = compare_results(results, unit=by)
    if page is not None:
        write_comparison(comparison, Path(page), next(iter(named)), list(named)[-1])
    return comparison


def whiten(
    model: AnyModel,
    images: Images,
    out: str | Path,
    *,
    dim: int = 0,
    power: float = 0.5,
    labels: str | Path | None = None,
    device: str = "auto",
) -> "Model":
    """Learn a whitening on images, fold it into the model's last layer, and write the new model to `out`.

    PCA with `power` (0.5 = full whitening), or Lw with `labels`; `dim` 0 keeps as many numbers as it can.

    >>> insclr.whiten("pretrained:efficientnet_lite0", "PHOTOS", "white.safetensors", dim=16).network.dim
    16
    """
    _require(model, device)
    listed = as_list(images)

    from insclr.jobs.whiten import whiten_model
    from insclr.model.device import place
    from insclr.model.model_file import load_model, resolve_model

    if isinstance(model, str | Path):
        model = resolve_model(model)
    loaded = model.as_model() if isinstance(model, OpenedModel) else model
    place(loaded.network, device)
    truth = None if labels is None else Path(labels)
    whiten_model(loaded, listed, Path(out), dim=dim, power=power, labels=truth)
    return load_model(out)


def names(store: str | Path, source: str | Path = "") -> dict[str, str]:
    """The name of every photo that has one, by its path; those that joined a named thing by their score among them.

    `source` names photos first: a CSV (path, name), another store, or the word "folders" for the photos' folders.

    >>> insclr.names("STORE", "names.csv")["thing3-1.png"]  # a CSV of path and name
    'Blue vase'
    """
    from insclr.retrieval.names import import_names, named_rows

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
    from insclr.retrieval.said import answer, closed, read_said

    opened = open_store(store)
    try:
        rows = opened.rows_by_path()
        missing = [path for path in (query, *same, *different) if path and path not in rows]
        if missing:
            raise UserError(f"{store} has no photo {missing[0]!r}: name photos as `insclr search` does.")
        if query:
            alike, others = ([rows[path].image.hash for path in paths] for paths in (same, different))
            opened.append([answer(rows[query].image.hash, alike, others)])
        found = closed(read_said(opened)).contradictions
        return [
            f"{one.link.source} does not fit {', '.join(each.source for each in one.chain)}" for one in found
        ]
    finally:
        opened.close()

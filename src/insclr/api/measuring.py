"""Measurements: evaluate and compare."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from insclr.api.models import AnyModel, Describing, load, require
from insclr.data.labels import read_labels
from insclr.describe.pipeline import describe_images
from insclr.errors import UserError
from insclr.progress import working
from insclr.retrieval.local.extractor import SIFT, Extractor, open_extractor
from insclr.retrieval.local.features import require_opencv
from insclr.retrieval.local.ranking import check_ranking
from insclr.retrieval.reranker_names import require_known, verifier_name
from insclr.shards import Shard, shard_of

if TYPE_CHECKING:
    from insclr.evaluation.compare import Comparison
    from insclr.evaluation.results import LabelResult, ProtocolResult


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
    local_features: str = "",
    local_matcher: str = "",
    allow_missing: bool = False,
    shard: str = "",
    parts: str | Path | None = None,
    **describing: Unpack[Describing],
) -> "LabelResult | ProtocolResult":
    """Measure a model: leave-one-out over a labels file (path, instance), or a public `protocol` under `root`.

    With labels, `ranking` may be by parts of images: "asmk", or "regions" of index images described at `region_size`.
    `local_features` and `local_matcher` are files with the weights of DISK and LightGlue, for `rerank="geometric"`.
    `describing` is for `load`: weights, size, fit, scales, device, engine.

    Descriptors of whole images are kept in the folder `parts`. Of several processes that share it each describes its
    `shard` ("2/4"), and the last one measures; the others raise `OtherShardsMissing`.

    >>> result = insclr.evaluate("RUN", "PHOTOS/labels.csv")
    >>> 0 < result.map <= 100
    True
    """
    own = _own_shard(labels, protocol, root, shard, parts)
    require(model, **describing)
    _require_ranking(rerank, ranking, protocol)
    extractor = _extractor(rerank, local_features, local_matcher)
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
            extractor=extractor,
            region_size=region_size,
            allow_missing=allow_missing,
            describe=describe,
        )
    others = read_distractors(Path(distractors), describe.blocks) if distractors else None
    return measure_protocol(benchmark, describe, reranker, others, allow_missing=allow_missing)


def _own_shard(
    labels: str | Path | None, protocol: str, root: str | Path | None, shard: str, parts: str | Path | None
) -> Shard:
    """The share of the images that this process describes; refuses what cannot be measured."""
    if (labels is None) == (not protocol) or (protocol and root is None):
        raise UserError("Say what to measure: either --labels CSV, or --protocol NAME --root DIR.")
    own = shard_of(shard)
    if parts is None and not own.whole:
        raise UserError(
            "Say with --parts in which folder the shards leave their descriptors: all must see it."
        )
    return own


def _extractor(rerank: str, local_features: str, local_matcher: str) -> Extractor:
    """What makes the features that a geometric verification compares."""
    chosen = open_extractor(local_features, local_matcher)
    if chosen is not None and verifier_name(rerank) != "geometric":
        raise UserError("--local-features are compared by --rerank geometric: give that too.")
    return chosen or SIFT


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
        require(model, **describing)
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

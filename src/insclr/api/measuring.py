"""Functions that measure: evaluate and compare."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from insclr.api.models import AnyModel, load, require_model
from insclr.data.labels import read_labels
from insclr.describe.pipeline import describe_images
from insclr.errors import UserError
from insclr.model.stored import PRETRAINED
from insclr.options import EvaluateOptions, LoadOptions, show_options
from insclr.progress import working
from insclr.shards import shard_of

if TYPE_CHECKING:
    from insclr.evaluation.compare import Comparison
    from insclr.evaluation.results import LabelResult, ProtocolResult


@show_options
def evaluate(
    model: AnyModel,
    labels: str | Path | None = None,
    options: EvaluateOptions = EvaluateOptions(),
    **changes: Any,
) -> "LabelResult | ProtocolResult":
    """Measure a model: leave-one-out over a labels file (path, instance), or a public `protocol` under `root`.

    With labels, `ranking` may be by "regions" of index images, which are described at `region_size`.
    Descriptors of whole images are kept in the folder `parts`. Of several processes that share it each describes its
    `shard` ("2/4"), and the last one measures; the others raise `OtherShardsMissing`.

    >>> result = insclr.evaluate("RUN", "PHOTOS/labels.csv")
    >>> 0 < result.map <= 100
    True
    """
    given = options.change(changes)
    if (labels is None) == (not given.protocol) or (given.protocol and given.root is None):
        raise UserError("Say what to measure: either --labels CSV, or --protocol NAME --root DIR.")
    shard = shard_of(given.shard)
    if given.parts is None and not shard.whole:
        raise UserError(
            "Say with --parts in which folder the shards leave their descriptors: all must see it."
        )
    require_model(model, given)
    truth = read_labels(labels) if labels is not None else None

    from insclr.describe.descriptor_parts import DescriptorParts
    from insclr.evaluation.evaluate import require_images
    from insclr.evaluation.measure import measure_labels, measure_protocol
    from insclr.evaluation.protocol import load_protocol

    if truth is not None:
        require_images(truth, allow_missing=given.allow_missing)
        opened = load(model, given)
        return measure_labels(opened, truth, given, DescriptorParts(opened, given.parts, shard))
    assert given.root is not None
    protocol = load_protocol(given.protocol, given.root, given.ground_truth)
    opened = load(model, given)
    return measure_protocol(protocol, given, DescriptorParts(opened, given.parts, shard))


@show_options
def compare(
    models: Mapping[str, AnyModel] | Sequence[str | Path],
    labels: str | Path,
    options: LoadOptions = LoadOptions(),
    *,
    by: Literal["query", "instance"] = "query",
    page: str | Path | None = None,
    allow_missing: bool = False,
    **changes: Any,
) -> "Comparison":
    """Compare models on a labels file, with paired bootstrap intervals; `by` is the unit that is resampled.

    `page` is an HTML file for the queries where the first and the last model differ. `weights` are those of the
    pretrained models.

    >>> comparison = insclr.compare(["pretrained:efficientnet_lite0", "RUN"], "PHOTOS/labels.csv")
    >>> print(comparison.table().splitlines()[0].split()[0])
    mAP
    """
    named: Mapping[str, Any] = models if isinstance(models, Mapping) else {str(one): one for one in models}
    if len(named) < 2 or len(named) < len(models):
        raise UserError("Name two or more different models to compare.")
    given = options.change(changes)
    each = {
        name: given if str(model).startswith(PRETRAINED) else replace(given, weights="")
        for name, model in named.items()
    }
    for name, model in named.items():
        require_model(model, each[name])
    truth = read_labels(labels)

    from insclr.evaluation.compare import compare as compare_results
    from insclr.evaluation.evaluate import evaluate_labels, require_images
    from insclr.report.comparison import write_comparison

    require_images(truth, allow_missing=allow_missing)
    results = {}
    for name, model in named.items():
        vectors = describe_images(load(model, each[name]), truth.images, boxes=truth.query_boxes)
        results[name] = evaluate_labels(vectors, truth, allow_missing=allow_missing)
    with working("comparing"):
        comparison = compare_results(results, unit=by)
    if page is not None:
        write_comparison(comparison, Path(page), next(iter(named)), list(named)[-1])
    return comparison

"""Commands that describe and measure: embed, evaluate, compare."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insclr.cli import app
from insclr.cli.photos import Images

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insclr.arrays import Descriptors
    from insclr.data.decode import Box
    from insclr.data.images import ImageList
    from insclr.engine.opened import OpenedModel
    from insclr.evaluation.protocol import RetrievalProtocol
    from insclr.evaluation.results import LabelResult, ProtocolResult
    from insclr.retrieval.rerank import Reranker


class Unit(StrEnum):
    """What the bootstrap of `compare` draws."""

    query = "query"
    instance = "instance"


ModelName = Annotated[
    str, typer.Argument(help="Run folder, model file, or pretrained:NAME.", metavar="MODEL")
]
Size = Annotated[int, typer.Option(help="Side of the image in pixels; 0 = what the model remembers.")]
Fit = Annotated[str, typer.Option(help="longest or square; empty = what the model remembers.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="auto (OpenVINO, else ONNX Runtime; torch on a GPU), torch, onnx or openvino.",
    ),
]
Scales = Annotated[str, typer.Option(help="Multiples of the size, e.g. 1.414,1,0.707; empty = the model's.")]


@app.command()
def embed(
    model: ModelName,
    images: Images,
    out: Annotated[Path, typer.Option(help="Result: .parquet or .npz.")],
    size: Size = 0,
    fit: Fit = "",
    scales: Scales = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Describe every photo by a unit vector. A second run describes only what is new or changed."""
    from insclr.data.images import list_images

    _require([model], device, engine)
    listed = list_images(images)
    from insclr.retrieval.descriptor_file import describe_to_file

    found = _load(model, size, fit, scales, device, engine)
    typer.echo(describe_to_file(found, listed, out, found.descriptor))


@app.command()
def evaluate(
    model: ModelName,
    labels: Annotated[Path | None, typer.Option(help="CSV with columns path, instance[, role].")] = None,
    protocol: Annotated[
        str, typer.Option(help="roxford5k, rparis6k, oxford5k, paris6k, instre or gldv2.")
    ] = "",
    root: Annotated[Path | None, typer.Option(help="Folder with the protocol's images.")] = None,
    ground_truth: Annotated[
        Path | None, typer.Option(help="Its ground truth, where not under --root.")
    ] = None,
    distractors: Annotated[
        Path | None, typer.Option(help="Distractors: images, or descriptors (.npy, .npz, .parquet).")
    ] = None,
    rerank: Annotated[str, typer.Option(help="aqe, alphaqe, dba, diffusion, egt or kreciprocal.")] = "",
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Leave missing images out.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here too.")] = None,
    size: Size = 0,
    fit: Fit = "",
    scales: Scales = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Measure a model: leave-one-out over a labels file, or a public protocol."""
    from insclr.data.labels import read_labels
    from insclr.errors import UserError

    if (labels is None) == (not protocol) or (protocol and root is None):
        raise UserError("Say what to measure: either --labels CSV, or --protocol NAME --root DIR.")
    # What can be wrong with the request is told before anything heavy is loaded.
    _require([model], device, engine, rerank)
    truth = read_labels(labels) if labels is not None else None

    from insclr.evaluation.evaluate import evaluate_labels, require_images
    from insclr.evaluation.protocols import load_protocol
    from insclr.retrieval.describe import describe_images
    from insclr.retrieval.rerank import rerank as find_reranker

    reranker = find_reranker(rerank) if rerank else None
    result: LabelResult | ProtocolResult
    if truth is not None:
        require_images(truth, allow_missing=allow_missing)
        found = _load(model, size, fit, scales, device, engine)
        vectors = describe_images(found, truth.images, boxes=truth.boxes)
        result = evaluate_labels(vectors, truth, reranker, allow_missing=allow_missing)
    else:
        assert root is not None
        benchmark = load_protocol(protocol, root, ground_truth)
        found = _load(model, size, fit, scales, device, engine)
        result = _on_benchmark(found, benchmark, distractors, reranker, allow_missing)
    typer.echo(result.table())
    _write_json(json_file, result.to_json())


def _on_benchmark(
    model: "OpenedModel",
    benchmark: "RetrievalProtocol",
    distractors: Path | None,
    reranker: "Reranker | None",
    allow_missing: bool,
) -> "ProtocolResult":
    from insclr.evaluation.evaluate import evaluate_protocol, read_distractors
    from insclr.retrieval.describe import describe_images

    def describe(images: "ImageList", boxes: "Sequence[Box | None] | None") -> "Descriptors":
        return describe_images(model, images, boxes=boxes)

    return evaluate_protocol(
        benchmark,
        describe,
        reranker,
        distractors=read_distractors(distractors, describe) if distractors else None,
        allow_missing=allow_missing,
    )


@app.command()
def compare(
    models: Annotated[
        list[str], typer.Argument(help="Two or more: run folder, model file, or pretrained:NAME.")
    ],
    labels: Annotated[Path, typer.Option(help="CSV with columns path, instance[, role].")],
    page: Annotated[
        Path | None, typer.Option(help="HTML page of the queries where first and last differ.")
    ] = None,
    by: Annotated[Unit, typer.Option(help="What is resampled.")] = Unit.query,
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Leave missing images out.")] = False,
    size: Size = 0,
    fit: Fit = "",
    scales: Scales = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here too.")] = None,
) -> None:
    """Models side by side with paired bootstrap intervals, and a page to look at."""
    from insclr.data.labels import read_labels
    from insclr.errors import UserError

    if len(models) < 2 or len(set(models)) < len(models):
        raise UserError("Name two or more different models to compare.")
    _require(models, device, engine)
    truth = read_labels(labels)

    from insclr.evaluation.compare import compare as compare_results
    from insclr.evaluation.evaluate import evaluate_labels, require_images
    from insclr.report.comparison import write_comparison
    from insclr.retrieval.describe import describe_images

    require_images(truth, allow_missing=allow_missing)
    results = {}
    for name in models:
        found = _load(name, size, fit, scales, device, engine)
        vectors = describe_images(found, truth.images, boxes=truth.boxes)
        results[name] = evaluate_labels(vectors, truth, allow_missing=allow_missing)
    comparison = compare_results(results, unit=by.value)
    typer.echo(comparison.table())
    _write_json(json_file, comparison.to_json())
    if page:
        write_comparison(comparison, page, models[0], models[-1])
        typer.echo(f"page    {page}")


def _require(models: "Sequence[str]", device: str, engine: str, rerank: str = "") -> None:
    """Refuse names that nothing has, before what bears them is loaded."""
    from insclr.engine.choose import require_engine
    from insclr.model.stored import find_model_file
    from insclr.retrieval.reranker_names import require_reranker

    require_engine(engine, device)
    require_reranker(rerank)
    for model in models:
        find_model_file(model)


def _load(name: str, size: int, fit: str, scales: str, device: str, engine: str) -> "OpenedModel":
    """The model by its engine, describing images as it remembers but for the user's changes."""
    from insclr.engine.opened import open_model
    from insclr.retrieval.describe import descriptor_settings

    return open_model(
        name,
        engine=engine,
        device=device,
        settings=lambda remembered: descriptor_settings(remembered, size, fit, scales),
    )


def _write_json(file: Path | None, content: dict[str, object]) -> None:
    if file is None:
        return
    from insclr.files import whole_file

    with whole_file(file) as scratch:
        scratch.write_text(json.dumps(content, indent=1))

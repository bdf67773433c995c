"""Commands that describe and measure: embed, evaluate, compare."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insclr.cli import app, say_when_stopped
from insclr.cli.photos import Images, listed
from insclr.shards import shard_of

if TYPE_CHECKING:
    from insclr.evaluation.results import LabelResult, ProtocolResult


class Unit(StrEnum):
    """What the bootstrap of `compare` draws."""

    query = "query"
    instance = "instance"


ModelName = Annotated[
    str, typer.Argument(help="Run folder, model file, or pretrained:NAME.", metavar="MODEL")
]
Weights = Annotated[str, typer.Option(help="With pretrained:NAME: file with the backbone's weights.")]
Size = Annotated[int, typer.Option(help="Side of the image in pixels; 0 = what the model remembers.")]
Fit = Annotated[str, typer.Option(help="longest or square; empty = what the model remembers.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Rerank = Annotated[
    str,
    typer.Option(
        help="Put the results in a better order. "
        "alphaqe: search again with the weighted mean of the query and its first results; "
        "diffusion: follow neighbours of neighbours (a search: among its 500 nearest); "
        "kreciprocal: prefer results that have the query among their own nearest; "
        "geometric: prefer photos in which points of the query are found again in the same arrangement; "
        "dsm: the same with cells of the network's own feature map."
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="auto (OpenVINO, else ONNX Runtime; torch on a GPU), torch, onnx or openvino.",
    ),
]
LocalFeatures = Annotated[
    str, typer.Option(help="For geometric: a file with the weights of kornia's DISK instead of SIFT.")
]
LocalMatcher = Annotated[str, typer.Option(help="With it: a file with the weights of LightGlue for DISK.")]
ShardOption = Annotated[
    str, typer.Option("--shard", help="2/4: do the second of four shares; torchrun splits by itself.")
]
_PARTS_KEPT = "What was described is kept in --parts: the same command goes on."
Scales = Annotated[str, typer.Option(help="Multiples of the size, e.g. 1.414,1,0.707; empty = the model's.")]


@app.command()
def embed(
    model: ModelName,
    images: Images,
    out: Annotated[Path, typer.Option(help="Result: .parquet or .npz.")],
    weights: Weights = "",
    size: Size = 0,
    fit: Fit = "",
    scales: Scales = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
    shard: ShardOption = "",
) -> None:
    """Describe every photo by a unit vector. A second run describes only what is new or changed."""
    own = shard_of(shard)
    say_when_stopped(lambda: f"Beside {out} is kept what was described: the same command goes on.")
    require(model, device, engine)
    found_images = listed(images)
    from insclr.api import load
    from insclr.describe.descriptor_shards import describe_shard_to_file

    found = load(model, weights=weights, size=size, fit=fit, scales=scales, device=device, engine=engine)
    typer.echo(describe_shard_to_file(found, found_images, out, found.descriptor, own))


GroundTruth = Annotated[Path | None, typer.Option(help="Its ground truth, where not under --root.")]
Distractors = Annotated[
    Path | None, typer.Option(help="Distractors: images, or descriptors (.npy, .npz, .parquet).")
]
MeasuredRanking = Annotated[str, typer.Option(help="global, regions or asmk; the latter two with --labels.")]
RegionSize = Annotated[
    int, typer.Option(help="Side at which index images are described for --ranking regions; 0 = --size.")
]


def _draw(result: "LabelResult | ProtocolResult", chart: Path, title: str) -> None:
    """The chart of how far the score means what it says."""
    from insclr.evaluation.results import LabelResult
    from insclr.report.reliability import write_reliability

    assert isinstance(result, LabelResult)
    write_reliability(result, chart, title=title)


@app.command()
def evaluate(
    model: ModelName,
    labels: Annotated[Path | None, typer.Option(help="CSV with columns path, instance[, role].")] = None,
    protocol: Annotated[
        str, typer.Option(help="roxford5k, rparis6k, oxford5k, paris6k, instre or gldv2.")
    ] = "",
    root: Annotated[Path | None, typer.Option(help="Folder with the protocol's images.")] = None,
    ground_truth: GroundTruth = None,
    distractors: Distractors = None,
    rerank: Rerank = "",
    ranking: MeasuredRanking = "global",
    region_size: RegionSize = 0,
    local_features: LocalFeatures = "",
    local_matcher: LocalMatcher = "",
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Leave missing images out.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here too.")] = None,
    chart: Annotated[
        Path | None, typer.Option(help="HTML page: does the score mean what it says? With --labels.")
    ] = None,
    weights: Weights = "",
    size: Size = 0,
    fit: Fit = "",
    scales: Scales = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
    shard: ShardOption = "",
    parts: Annotated[
        Path | None, typer.Option(help="Folder that keeps the descriptors; all shards must see it.")
    ] = None,
) -> None:
    """Measure a model: leave-one-out over a labels file, or a public protocol."""
    from insclr.api import evaluate as measure
    from insclr.errors import OtherShardsMissing, UserError

    if chart is not None and labels is None:
        raise UserError("--chart draws what --labels measure: a protocol has no score to judge.")
    if chart is not None and ranking == "regions":
        raise UserError("--chart draws the score of whole photos: leave out --ranking regions, or --chart.")
    say_when_stopped(lambda: _PARTS_KEPT if parts else "Nothing was kept: --parts FOLDER keeps descriptors.")
    try:
        result = measure(
            model,
            labels,
            protocol=protocol,
            root=root,
            ground_truth=ground_truth,
            distractors=distractors,
            rerank=rerank,
            ranking=ranking,
            region_size=region_size,
            local_features=local_features,
            local_matcher=local_matcher,
            allow_missing=allow_missing,
            weights=weights,
            size=size,
            fit=fit,
            scales=scales,
            device=device,
            engine=engine,
            shard=shard,
            parts=parts,
        )
    except OtherShardsMissing as unfinished:
        typer.echo(str(unfinished))
        return
    if chart is not None:
        _draw(result, chart, title=f"{model} on {labels}")
    typer.echo(result.table())
    _write_json(json_file, result.to_json())


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
    weights: Weights = "",
    size: Size = 0,
    fit: Fit = "",
    scales: Scales = "",
    device: Device = "auto",
    engine: EngineOption = "auto",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here too.")] = None,
) -> None:
    """Models side by side with paired bootstrap intervals, and a page to look at."""
    from insclr.api import compare as compare_models
    from insclr.errors import UserError

    if len(set(models)) < len(models):
        raise UserError("Name two or more different models to compare.")
    comparison = compare_models(
        {name: with_weights(name, weights if name.startswith("pretrained:") else "") for name in models},
        labels,
        by=by.value,
        page=page,
        allow_missing=allow_missing,
        size=size,
        fit=fit,
        scales=scales,
        device=device,
        engine=engine,
    )
    typer.echo(comparison.table())
    _write_json(json_file, comparison.to_json())
    if page:
        typer.echo(f"page    {page}")


def with_weights(model: str, weights: str) -> str:
    """The model's name, joined with its weights file where one is given."""
    from insclr.model.stored import with_weights as join

    return join(model, weights)


def require(model: str, device: str, engine: str = "auto") -> None:
    """Refuse names that nothing has, before a large folder is listed and anything heavy is loaded."""
    from insclr.engine.choose import require_engine
    from insclr.model.stored import find_model_file

    require_engine(engine, device)
    find_model_file(model)


def _write_json(file: Path | None, content: dict[str, object]) -> None:
    if file is None:
        return
    from insclr.files import whole_file

    with whole_file(file) as scratch:
        scratch.write_text(json.dumps(content, indent=1))

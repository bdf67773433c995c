"""Commands that describe and measure: embed, evaluate, compare."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from insclr.cli import app, tell_when_stopped
from insclr.cli.flags import Images, ModelName, command, list_given
from insclr.errors import OtherShardsMissing
from insclr.options import SHARD_HELP, EvaluateOptions, LoadOptions

LabelsHelp = "CSV with columns path, instance[, role]."
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the numbers here too.")]


@command
def embed(
    model: ModelName,
    images: Images,
    out: Annotated[Path, typer.Option(help="Result: .parquet or .npz.")],
    options: LoadOptions,
    shard: Annotated[str, typer.Option(help=SHARD_HELP)] = "",
) -> None:
    """Describe every image by a unit vector. A second run describes only what is new or changed."""
    from insclr.shards import shard_of

    own = shard_of(shard)
    tell_when_stopped(
        lambda: f"Descriptors made so far are kept beside {out}. Run the same command to continue."
    )
    from insclr.api import load
    from insclr.api.models import require_model

    require_model(model, options)
    listed = list_given(images)
    opened = load(model, options)
    from insclr.describe.descriptor_file import describe_to_file

    typer.echo(describe_to_file(opened, listed, out, opened.descriptor, own))


@command
def evaluate(
    model: ModelName,
    options: EvaluateOptions,
    labels: Annotated[Path | None, typer.Option(help=LabelsHelp)] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure a model: leave-one-out over a labels file, or a public protocol."""
    tell_when_stopped(
        lambda: (
            "Descriptors made so far are kept in --parts. Run the same command to continue."
            if options.parts
            else "Nothing was kept: --parts FOLDER keeps descriptors."
        )
    )
    from insclr.api import evaluate as measure

    try:
        result = measure(model, labels, options)
    except OtherShardsMissing as unfinished:
        typer.echo(str(unfinished))
        return
    typer.echo(result.table())
    _write_json(json_file, result.to_json())


@command
def compare(
    models: Annotated[
        list[str], typer.Argument(help="Two or more: run folder, model file, or pretrained:NAME.")
    ],
    labels: Annotated[Path, typer.Option(help=LabelsHelp)],
    options: LoadOptions,
    page: Annotated[
        Path | None, typer.Option(help="HTML page of the queries where first and last differ.")
    ] = None,
    by: Annotated[Literal["query", "instance"], typer.Option(help="What is resampled.")] = "query",
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Leave missing images out.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Compare models on a labels file, with paired bootstrap intervals and a page of the differences."""
    from insclr.api import compare as compare_models

    comparison = compare_models(models, labels, options, by=by, page=page, allow_missing=allow_missing)
    typer.echo(comparison.table())
    _write_json(json_file, comparison.to_json())
    if page:
        typer.echo(f"page    {page}")


@app.command("list")
def list_published(
    name: Annotated[str, typer.Argument(help="gldv2 or instre.")],
    file: Annotated[Path, typer.Argument(help="train.csv or train_clean.csv of gldv2; gnd_instre.mat.")],
    root: Annotated[Path, typer.Option(help="Folder with the images, unpacked.")],
    out: Annotated[Path, typer.Option(help="The list to write (.csv: path, instance).")],
    at_least: Annotated[
        int, typer.Option("--at-least", help="Only instances with so many images.", min=1)
    ] = 1,
) -> None:
    """List the training images of a published data set, with their labels, for train and paper."""
    from insclr.evaluation.published_lists import write_list

    images, instances = write_list(name, file, root, out, at_least)
    typer.echo(f"{out}: {images:,} images of {instances:,} instances")


def _write_json(file: Path | None, content: dict[str, object]) -> None:
    if file is None:
        return
    from insclr.files import whole_file

    with whole_file(file) as scratch:
        scratch.write_text(json.dumps(content, indent=1))

"""Commands that describe and measure: embed, evaluate, compare."""

from pathlib import Path
from typing import Annotated

import typer

from insclr.cli import app
from insclr.cli.photos import Images

ModelName = Annotated[
    str, typer.Argument(help="Run folder, model file, or pretrained:NAME.", metavar="MODEL")
]
Size = Annotated[int, typer.Option(help="Side of the image in pixels; 0 = what the model remembers.")]
Fit = Annotated[str, typer.Option(help="longest or square; empty = what the model remembers.")]
Scales = Annotated[str, typer.Option(help="Multiples of the size, e.g. 1.414,1,0.707; empty = the model's.")]


@app.command()
def embed(
    model: ModelName,
    images: Images,
    out: Annotated[Path, typer.Option(help="Result: .parquet or .npz.")],
    size: Size = 0,
    fit: Fit = "",
    scales: Scales = "",
) -> None:
    """Describe every photo by a unit vector. A second run describes only what is new or changed."""
    from insclr.data.images import list_images
    from insclr.model.model_file import resolve_model
    from insclr.retrieval.embeddings import embed_to_file
    from insclr.retrieval.extract import descriptor_settings

    found = resolve_model(model)
    settings = descriptor_settings(found.recipe.descriptor, size, fit, scales)
    summary = embed_to_file(found, list_images(images), out, settings)
    typer.echo(summary)


@app.command()
def evaluate(
    model: ModelName,
    labels: Annotated[Path | None, typer.Option(help="CSV with columns path, instance[, role].")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here too.")] = None,
    size: Size = 0,
    fit: Fit = "",
    scales: Scales = "",
) -> None:
    """Measure a model: leave-one-out over a labels file, or a public protocol."""
    import json

    from insclr.atomic import whole_file
    from insclr.errors import UserError
    from insclr.evaluation.evaluate import evaluate_labels
    from insclr.evaluation.labels import read_labels
    from insclr.model.model_file import resolve_model
    from insclr.retrieval.extract import describe, descriptor_settings

    if labels is None:
        raise UserError("Say what to measure: --labels CSV or --protocol NAME --root DIR.")
    truth = read_labels(labels)
    found = resolve_model(model)
    settings = descriptor_settings(found.recipe.descriptor, size, fit, scales)
    result = evaluate_labels(describe(found, truth.images, settings, boxes=truth.boxes), truth)
    typer.echo(result.table())
    if json_file:
        with whole_file(json_file) as scratch:
            scratch.write_text(json.dumps(result.to_json(), indent=1))

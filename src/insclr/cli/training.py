"""Commands that make models: recipes, train, whiten, export."""

import json
import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from insclr.cli import app, tell_when_stopped
from insclr.cli.flags import Images, ModelName, command, list_given
from insclr.errors import UserError
from insclr.options import PaperOptions, TrainOptions, WeightsOptions, WhitenOptions

_SHOWN = 5  # of the images that were left out


@app.command()
def recipes(
    name: Annotated[str, typer.Argument(help="A recipe to print, or nothing to list them.")] = "",
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of a recipe file, for editors.")
    ] = False,
) -> None:
    """List the recipes, or print one with every setting and what it does."""
    from insclr.recipe import load_recipe, recipe_schema, recipe_summaries, to_toml

    if schema:
        typer.echo(json.dumps(recipe_schema(), indent=2))
    elif name:
        typer.echo(to_toml(load_recipe(name), comments=True), nl=False)
    else:
        for each, about in recipe_summaries().items():
            typer.echo(f"{each:<17} {about}")


@app.command()
def backbones(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure milliseconds a photo on this machine.")
    ] = False,
) -> None:
    """List the backbones with short names: licence, download, input size, and whether the weights are here."""
    from huggingface_hub import try_to_load_from_cache

    from insclr.recipe.backbone_names import KNOWN_BACKBONES

    header = ("name", "timm name", "licence", "download", "trained at", "numbers", "weights")
    rows = [(*header, "ms a photo") if measure else header]
    for name, known in KNOWN_BACKBONES.items():
        here = not known.hub or isinstance(try_to_load_from_cache(known.hub, "model.safetensors"), str)
        download = f"{known.megabytes} MB" if known.hub else "-"
        state = "here" if here else "to fetch"
        cells = (name, known.timm, known.licence, download, f"{known.side} px", str(known.features), state)
        rows.append((*cells, _milliseconds(known.timm)) if measure else cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _milliseconds(name: str) -> str:
    """Processor time of torch for a photo of 224 x 224 pixels; the weights, which do not matter, are random."""
    import torch

    from insclr.model.backbones import create_backbone

    backbone = create_backbone(name, pretrained=False).eval()
    photo = torch.zeros(1, 3, 224, 224, dtype=torch.uint8)
    with torch.inference_mode():
        backbone(photo)
        began = time.process_time()
        backbone(photo)
    return f"{1000 * (time.process_time() - began):.0f}"


ImagesOrResumed = Annotated[
    Path | None,
    typer.Argument(
        help="Folder of images, .txt list, or .csv/.parquet with a path column; not needed with --resume."
    ),
]
RecipeOrResumed = Annotated[
    str, typer.Option(help="A recipe's name or a TOML file; empty = default, or that of the resumed run.")
]


@command
def train(
    out: Annotated[Path, typer.Option(help="The run folder.")],
    options: TrainOptions,
    images: ImagesOrResumed = None,
    recipe: RecipeOrResumed = "",
) -> None:
    """Train a network on the particular things in your images. No labels needed."""
    from insclr.data.images import require_listed
    from insclr.engine.choose import require_engine
    from insclr.progress import working
    from insclr.recipe import load_recipe

    tell_when_stopped(lambda: _describe_kept(out))
    # Mistakes in the request are reported before anything heavy is loaded.
    require_engine(options.engine, options.device)
    if images is not None:
        require_listed(images)
    if recipe or not options.resume:
        load_recipe(recipe or "default", options.recipe_changes)
    with working("starting"):
        from insclr.jobs.train import train as train_model

    train_model(images, out, recipe or None, options)
    if os.environ.get("RANK", "0") == "0":  # under torchrun one rank prints for all
        typer.echo("\n".join(_end_of_run(out)))


def _describe_kept(out: Path) -> str:
    """What a stopped training leaves, and how to go on."""
    from insclr.run_folder import RunReader, kept_recipe

    if kept_recipe(out) is None:
        return "Nothing was written yet."
    return f"{out} keeps {RunReader(out).progress()}. Continue: insclr train --resume --out {shlex.quote(str(out))}"


def _end_of_run(out: Path) -> list[str]:
    """Where the results are, which images were left out and why, and the next command."""
    from insclr.data.formats import not_read_lines
    from insclr.data.table import one_line
    from insclr.run_folder import RunReader

    run = RunReader(out)
    lines = [f"model   {out / 'model.safetensors'}", f"report  {run.report_file}"]
    left_out = list(run.read_skipped().items())
    if left_out:
        lines.append(f"left out: {len(left_out)} of {len(run.images())} images (all in {run.skipped_file})")
        lines += [one_line(f"  {path}: {reason}") for path, reason in left_out[:_SHOWN]]
    lines += not_read_lines(run.images().not_read)
    source = shlex.quote(str(run.option("images") or run.images().root))
    return [*lines, f"next    insclr index {shlex.quote(str(out))} {source} --store STORE"]


@command
def whiten(
    model: ModelName,
    images: Images,
    out: Annotated[Path, typer.Option(help="The new model file (.safetensors).")],
    options: WhitenOptions,
) -> None:
    """Learn a whitening on the images and fold it into the model's last layer."""
    from insclr.api import whiten as whiten_model

    whiten_model(model, list_given(images), out, options)
    typer.echo(f"model   {out}")


@command
def export(
    model: ModelName,
    onnx: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    options: WeightsOptions,
    photos: Annotated[Path | None, typer.Option(help="Images to verify it on.")] = None,
) -> None:
    """Write a model as an ONNX file for other programs, verified against torch: images in, unit vectors out."""
    from insclr.api import export as export_model

    listed = list_given(photos) if photos else None
    typer.echo(export_model(model, onnx, photos=listed, weights=options.weights))


@command
def paper(
    table: Annotated[str, typer.Argument(help="table1 to table6, figure-..., neighbours, pool or rivals.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs and the tables, which share them.")],
    options: PaperOptions,
    images: Annotated[
        Path | None, typer.Argument(help="Images to train on, with --protocol; none with --data.")
    ] = None,
) -> None:
    """Make a table of the paper: train and measure every row, with the printed numbers beside ours; resumable."""
    from importlib.metadata import entry_points

    tables = {point.name: point for point in entry_points(group="insclr.tables")}
    for file in options.data:
        if not Path(file).is_file():
            raise UserError(f"There is no labels file {file}: give a labels.csv beside its images.")
    if table not in tables:
        raise UserError(f"There is no table {table!r}: choose one of {', '.join(tables)}.")
    tell_when_stopped(lambda: f"Finished runs are kept in {out}. Run the same command to continue.")
    typer.echo(tables[table].load().run(images, out, options), nl=False)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")]) -> None:
    """Write report.html of a run anew."""
    if not run.is_dir():
        raise UserError(f"{run} is not a run folder: give the --out folder of `insclr train`.")
    from insclr.report.run_report import write_report

    typer.echo(write_report(run))

"""Commands that make models: recipes, train, whiten."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from insclr.cli import app
from insclr.cli.evaluation import Device, EngineOption, ModelName
from insclr.cli.photos import Images


class Precision(StrEnum):
    """How numbers are kept in an exported model."""

    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"


class Budget(StrEnum):
    """What the rivals of an ablation have as much of as our method."""

    images = "images"
    minutes = "minutes"


TABLE_NAMES = ("methods", "printed", "memory", "batch", "neighbours", "pool")


@app.command()
def recipes(
    name: Annotated[str, typer.Argument(help="A recipe to print, or nothing to list them.")] = "",
) -> None:
    """List the recipes, or print one with every knob and what it does."""
    from insclr.recipe import load_recipe, recipe_names, to_toml

    if name:
        typer.echo(to_toml(load_recipe(name), comments=True), nl=False)
        return
    for each in recipe_names():
        typer.echo(f"{each:<17} {load_recipe(each).about}")


@app.command()
def train(
    images: Images,
    out: Annotated[Path, typer.Option(help="The run folder.")],
    recipe: Annotated[str, typer.Option(help="A recipe's name or a TOML file.")] = "default",
    minutes: Annotated[
        float | None, typer.Option(help="Time for the rounds that train more than the last layer.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, e.g. network.dim=256.")
    ] = None,
    weights: Annotated[str, typer.Option(help="File with the backbone's weights.")] = "",
    labels: Annotated[
        Path | None,
        typer.Option(help="CSV (path, instance): to log mAP; recipes that say SUPERVISED learn from it."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    engine: EngineOption = "auto",
    cache: Annotated[
        Path | None, typer.Option(help="Keep features here, for other runs on these images.")
    ] = None,
) -> None:
    """Teach a network the particular things in your photos. No labels needed."""
    from insclr.data.images import require_listed
    from insclr.engine.choose import require_engine
    from insclr.recipe import load_recipe

    changes = list(change or [])
    if minutes is not None:
        changes.append(f"minutes={float(minutes)}")
    if weights:
        changes.append(f"network.weights={weights!r}")
    # What can be wrong with the request is told before anything heavy is loaded.
    require_engine(engine, device)
    chosen = load_recipe(recipe, tuple(changes))
    require_listed(images)
    from insclr.jobs.train import train as train_model

    train_model(
        images,
        out,
        chosen,
        labels=labels,
        resume=resume,
        device=device,
        cache=cache,
        engine=engine,
    )
    if os.environ.get("RANK", "0") == "0":  # under torchrun one says it for all
        typer.echo(f"model   {out / 'model.safetensors'}\nreport  {out / 'report.html'}")


@app.command()
def whiten(
    model: Annotated[str, typer.Argument(help="Run folder, model file, or pretrained:NAME.")],
    images: Images,
    out: Annotated[Path, typer.Option(help="The new model file (.safetensors).")],
    dim: Annotated[int, typer.Option(help="Length of the new descriptor; 0 = as long as it can be.")] = 0,
    power: Annotated[float, typer.Option(help="0 = centred rotation, 0.5 = full whitening.")] = 0.5,
    labels: Annotated[
        Path | None, typer.Option(help="CSV (path, instance): supervised whitening Lw.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Learn a whitening on the photos and fold it into the model's last layer."""
    from insclr.data.images import list_images
    from insclr.model.device import require_device_name
    from insclr.model.stored import find_model_file

    require_device_name(device)
    find_model_file(model)
    listed = list_images(images)
    from insclr.jobs.whiten import whiten_model
    from insclr.model.device import place
    from insclr.model.model_file import resolve_model

    found = resolve_model(model)
    place(found.network, device)
    whiten_model(found, listed, out, dim=dim, power=power, labels=labels)
    typer.echo(f"model   {out}")


@app.command()
def export(
    model: ModelName,
    onnx: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    precision: Annotated[Precision, typer.Option(help="Of the weights and the arithmetic.")] = Precision.fp32,
    photos: Annotated[
        Path | None, typer.Option(help="Photos to verify it on; int8 learns its ranges from them.")
    ] = None,
) -> None:
    """Write a model as an ONNX file for other programs, verified against torch: images in, unit vectors out."""
    from insclr.data.images import list_images
    from insclr.model.stored import find_model_file

    listed = list_images(photos) if photos else None
    find_model_file(model)  # refuses a wrong name before anything heavy is loaded
    from insclr.engine.onnx_file import write_onnx
    from insclr.model.model_file import resolve_model

    typer.echo(write_onnx(resolve_model(model), onnx, precision=precision.value, photos=listed))


@app.command()
def ablate(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, printed, memory, batch, neighbours or pool (the paper's tables), or rivals."
        ),
    ],
    data: Annotated[list[Path], typer.Option(help="A labels.csv beside its images; once a set.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs and the table.")],
    recipe: Annotated[
        str, typer.Option(help="The recipe that the entries change; empty = the table's own.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each entry.")] = 3,
    parallel: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    budget: Annotated[
        Budget, typer.Option(help="rivals: what all have as much of as fast, images seen or minutes.")
    ] = Budget.images,
    rows: Annotated[str, typer.Option(help="rivals: only these rows, e.g. simclr,byol; empty = all.")] = "",
) -> None:
    """Run the entries of a table x sets x seeds; resumable; one table with intervals."""
    from insclr.errors import UserError

    for file in data:
        if not file.is_file():
            raise UserError(f"There is no labels file {file}: give a labels.csv beside its images.")
    if what not in (*TABLE_NAMES, "rivals"):
        raise UserError(f"There is no table {what!r}: choose one of {', '.join(TABLE_NAMES)}, rivals.")
    from insclr.jobs.ablate import TABLES, LabelledSet
    from insclr.jobs.ablate import ablate as run_table
    from insclr.jobs.rivals import compare_rivals

    sets = [LabelledSet(file.absolute().parent.name, file.parent, file) for file in data]
    if what == "rivals":
        if recipe:
            raise UserError("The rivals have recipes of their own: leave --recipe out.")
        names = tuple(name.strip() for name in rows.split(",") if name.strip())
        made = compare_rivals(sets, range(seeds), out, budget=budget.value, names=names, parallel=parallel)
        typer.echo(made, nl=False)
        return
    table = TABLES[what]
    made = run_table(table.entries, sets, range(seeds), out, recipe=recipe or table.recipe, parallel=parallel)
    typer.echo(made, nl=False)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")]) -> None:
    """Write report.html of a run anew."""
    from insclr.errors import UserError

    if not run.is_dir():
        raise UserError(f"{run} is not a run folder: give the --out folder of `insclr train`.")
    from insclr.report.run_report import write_report

    typer.echo(write_report(run))

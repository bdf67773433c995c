"""Commands that share models: push, pull."""

from pathlib import Path
from typing import Annotated

import typer

from insclr.cli import app, say_when_stopped

Repository = Annotated[str, typer.Argument(help="USER/NAME on the Hugging Face hub.", metavar="USER/NAME")]


@app.command()
def push(
    model: Annotated[str, typer.Argument(help="Run folder or model file.", metavar="MODEL")],
    repo: Repository,
    public: Annotated[
        bool, typer.Option("--public", help="For everybody to read; else for you alone.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be uploaded, card included; connect to nothing."),
    ] = False,
    results: Annotated[
        list[Path] | None, typer.Option(help="Figures for the card, by `insclr evaluate --json FILE`.")
    ] = None,
    license: Annotated[
        str,
        typer.Option(
            help="The model's licence, such as cc-by-nc-4.0; empty = that of its backbone's weights."
        ),
    ] = "",
    card: Annotated[
        Path | None, typer.Option(help="A card of your own (Markdown) instead of the written one.")
    ] = None,
) -> None:
    """Share a model: upload its file and a model card to a repository of the Hugging Face hub, private by default.

    The photos stay here. Log in with `hf auth login`, or set HF_TOKEN.
    """
    from insclr.sharing.push import push as push_model

    say_when_stopped(lambda: "The repository has the whole upload or nothing of it.")
    pushed = push_model(
        model, repo, public=public, results=results or (), license=license, card=card, dry_run=dry_run
    )
    typer.echo("\n".join(pushed.lines()))
    if dry_run:
        typer.echo(f"\n{pushed.card}", nl=False)


@app.command()
def pull(
    repo: Repository,
    out: Annotated[Path, typer.Option(help="The model file to write (.safetensors).")],
    revision: Annotated[str, typer.Option(help="A branch, tag or commit; empty = the newest.")] = "",
) -> None:
    """Fetch a shared model from the Hugging Face hub; it is checked before it is put in place."""
    from insclr.sharing.pull import pull as pull_model

    say_when_stopped(lambda: f"Nothing was written to {out}.")
    model = pull_model(repo, out, revision=revision)
    network = model.recipe.network
    typer.echo(
        f"model   {out}\n{network.backbone}, {model.network.dim} numbers, fingerprint {model.fingerprint}"
    )

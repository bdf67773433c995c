"""Commands that share models: push, pull."""

from pathlib import Path
from typing import Annotated

import typer

from insclr.cli import tell_when_stopped
from insclr.cli.flags import command

Repository = Annotated[str, typer.Argument(help="USER/NAME on the Hugging Face hub.", metavar="USER/NAME")]


@command
def push(
    model: Annotated[str, typer.Argument(help="Run folder or model file.", metavar="MODEL")],
    repo: Repository,
    public: Annotated[bool, typer.Option("--public", help="Readable by everybody; else private.")] = False,
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
        Path | None, typer.Option(help="Your own card (Markdown) instead of the generated one.")
    ] = None,
) -> None:
    """Share a model: upload its file and a model card to a repository of the Hugging Face hub, private by default.

    Images are not uploaded. Log in with `hf auth login`, or set HF_TOKEN.
    """
    from insclr.sharing.push import push as push_model

    tell_when_stopped(lambda: "The repository has the whole upload or none of it.")
    pushed = push_model(
        model, repo, public=public, results=results or (), license=license, card=card, dry_run=dry_run
    )
    typer.echo("\n".join(pushed.lines()))
    if dry_run:
        typer.echo(f"\n{pushed.card}", nl=False)


@command
def pull(
    repo: Repository,
    out: Annotated[Path, typer.Option(help="The model file to write (.safetensors).")],
    revision: Annotated[str, typer.Option(help="A branch, tag or commit; empty = the newest.")] = "",
) -> None:
    """Fetch a shared model from the Hugging Face hub; it is checked before it is written."""
    from insclr.sharing.hub import pull as pull_model

    tell_when_stopped(lambda: f"Nothing was written to {out}.")
    model = pull_model(repo, out, revision=revision)
    network = model.recipe.network
    typer.echo(
        f"model   {out}\n{network.backbone}, {model.network.dim} numbers, fingerprint {model.fingerprint}"
    )

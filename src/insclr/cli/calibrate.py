"""The command that makes a store's scores agree with what people know: calibrate."""

from pathlib import Path
from typing import Annotated

import typer

from insclr.cli import app
from insclr.cli.search import StoreName


@app.command()
def calibrate(
    store: StoreName,
    column: Annotated[str, typer.Option(help="A column that names the thing in each photo.")] = "",
    answers: Annotated[
        Path | None, typer.Option(help="CSV with columns one, other (paths) and same (yes or no).")
    ] = None,
) -> None:
    """Calibrate the scores of a store: from a column or answered pairs, or anew without any labels."""
    from insclr.api import calibrate as calibrate_store

    curve = calibrate_store(store, column=column, answers=answers)
    learned = f"{curve.answers} answered pairs" if curve.answers else "the photos alone, without labels"
    typer.echo(f"scores calibrated from {learned}: the line is at cosine {curve.cutoff:.3f}")

"""The command that makes a store's scores agree with what people know: calibrate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from insclr.cli import app
from insclr.cli.search import StoreName

if TYPE_CHECKING:
    from insclr.retrieval.score import Answer
    from insclr.retrieval.store import Store


@app.command()
def calibrate(
    store: StoreName,
    column: Annotated[str, typer.Option(help="A column that names the thing in each photo.")] = "",
    answers: Annotated[
        Path | None, typer.Option(help="CSV with columns one, other (paths) and same (yes or no).")
    ] = None,
) -> None:
    """Calibrate the scores of a store: from a column or answered pairs, or anew without any labels."""
    from insclr.errors import UserError
    from insclr.retrieval.score import answers_from_column, calibrate_from_answers
    from insclr.retrieval.store import open_store

    if column and answers:
        raise UserError("Give either --column or --answers, not both.")
    opened = open_store(store)
    try:
        with opened.writing():
            if column and column not in opened.columns():
                known = ", ".join(opened.columns()) or "none"
                raise UserError(f"{store} has no column {column!r}; it has: {known}.")
            known_pairs = answers_from_column(opened, column) if column else _read_answers(opened, answers)
            curve = calibrate_from_answers(opened, known_pairs)
    finally:
        opened.close()
    learned = f"{curve.answers} answered pairs" if curve.answers else "the photos alone, without labels"
    typer.echo(f"scores calibrated from {learned}: the line is at cosine {curve.cutoff:.3f}")


def _read_answers(store: "Store", file: Path | None) -> "list[Answer]":
    import csv

    from insclr.errors import UserError
    from insclr.files import open_text
    from insclr.retrieval.score import Answer

    if file is None:
        return []
    rows = store.rows_by_path()
    found = []
    with open_text(file, encoding="utf-8-sig", newline="") as text:
        reader = csv.DictReader(text)
        if not {"one", "other", "same"} <= set(reader.fieldnames or ()):
            raise UserError(f"{file}: the first line must name the columns one, other and same.")
        for line in reader:
            same = (line["same"] or "").strip().lower()
            if same not in ("yes", "no"):
                raise UserError(f"{file}, line {reader.line_num}: same must be yes or no, not {same!r}.")
            missing = [path for path in (line["one"], line["other"]) if path not in rows]
            if missing:
                raise UserError(f"{file}, line {reader.line_num}: {missing[0]} is not in {store.uri}.")
            found.append(Answer(rows[line["one"]].id, rows[line["other"]].id, same == "yes"))
    return found

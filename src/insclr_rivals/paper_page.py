"""Write a table of the paper as Markdown, JSON and HTML: our numbers with the printed ones beside them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from insclr.files import whole_file
from insclr.report.page import write_page
from insclr_rivals.paper_figures import Figure
from insclr_rivals.runs import Entry, Outcome, interval

Done = Sequence[tuple[Entry, list[Outcome]]]


def write_table(
    file: Path, title: str, done: Done, notes: Sequence[str] = (), figures: Sequence[Figure] = ()
) -> str:
    """Write `file`.md, .json and .html; give back the Markdown."""
    columns = list(dict.fromkeys(name for _, outcomes in done for one in outcomes for name in one.measured))
    described = {name: how for _, outcomes in done for one in outcomes for name, how in one.described.items()}
    about = ["mAP in percent; in brackets what the paper prints."]
    about += [f"{name}: images described at {how}." for name, how in described.items()]
    content = {
        "title": title,
        "columns": columns,
        "described": described,
        "notes": list(notes),
        "rows": [
            {**asdict(entry), "printed": dict(entry.printed), "outcomes": [asdict(one) for one in outcomes]}
            for entry, outcomes in done
        ],
        "figures": [{"title": figure.title, "values": figure.values} for figure in figures],
    }
    rows = [[entry.name, *_cells(entry, outcomes, columns)] for entry, outcomes in done]
    head = ["", *columns, "precision", "minutes", "recipe"]
    return write_files(file, title, [*about, *notes], head, rows, content, figures)


def write_files(
    file: Path,
    title: str,
    about: Sequence[str],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    content: dict[str, Any],
    figures: Sequence[Figure],
) -> str:
    """Write a table and its figures as `file`.md and .html, `content` as .json; give back the Markdown."""
    lines = [f"# {title}", "", *about, "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    for figure in figures:
        lines += ["", f"## {figure.title}", "", *figure.lines] if figure.lines else []
    text = "\n".join(lines) + "\n"
    for suffix, written in ((".json", json.dumps(content, indent=1)), (".md", text)):
        with whole_file(file.with_suffix(suffix)) as scratch:
            scratch.write_text(written)
    jpegs = {name: jpeg for figure in figures for name, jpeg in figure.jpegs.items()}
    write_page(
        file.with_suffix(".html"),
        "paper.html",
        package="insclr_rivals",
        title=title,
        about=about,
        head=head,
        rows=rows,
        figures=figures,
        jpegs=jpegs,
    )
    return text


def _cells(entry: Entry, outcomes: Sequence[Outcome], columns: Sequence[str]) -> list[str]:
    cells = []
    for column in columns:
        values = [one.measured[column] for one in outcomes if one.measured.get(column) is not None]
        ours = f"{mean(values):.1f}{interval(values)}" if values else ""
        printed = f"({_format_printed(entry.printed[column])})" if column in entry.printed else ""
        cells.append(f"{ours} {printed}".strip())
    shares = [one.precision for one in outcomes if one.precision is not None]
    minutes = [one.training_seconds / 60 for one in outcomes if one.training_seconds]
    hashes = sorted({one.recipe for one in outcomes if one.recipe})
    return [
        *cells,
        f"{mean(shares):.2f}" if shares else "",
        f"{mean(minutes):.1f}" if minutes else "",
        ", ".join(hashes),
    ]


def _format_printed(value: float) -> str:
    """With one decimal, or two where the paper has them."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"

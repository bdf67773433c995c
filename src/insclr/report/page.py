"""Render pages from the templates beside this file: each one HTML file with its style and photos inside."""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from insclr.files import whole_file


def write_page(file: Path, template: str, *, package: str = "insclr.report", **values: Any) -> None:
    """Fill a template of the package and write the page whole.

    Every value is escaped; a value the template lacks is an error.
    """
    html = _templates(package).get_template(template).render(values)
    with whole_file(file) as scratch:
        # File names may hold bytes that are not text: a page shows them as question marks.
        scratch.write_text(html, encoding="utf-8", errors="replace")


def count_noun(number: int, noun: str) -> str:
    """A number with its noun: 1 photo, 2,000 photos."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds for people: 43 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def mark_code(text: str) -> Markup:
    """Escaped text in which `commands` between backticks are set as code, broken at their spaces alone."""
    parts = []
    for place, part in enumerate(text.split("`")):
        if place % 2:
            words = (Markup("<span>{}</span>").format(word) for word in part.split())
            parts.append(Markup("<code>{}</code>").format(Markup(" ").join(words)))
        else:
            parts.append(escape(part))
    return Markup("").join(parts)


def _templates(package: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(one) for one in dict.fromkeys((package, "insclr.report"))]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count_noun"] = count_noun
    environment.filters["mark_code"] = mark_code
    return environment

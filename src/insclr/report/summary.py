"""The words and tables of a report: headline, what was calibrated and why, the guard, files left out."""

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from insclr.report.charts import short
from insclr.report.run_record import Record, RunRecord

_SKIPPED_SHOWN = 50
_REASON = re.compile(r"(\w+) = ([^:]+): (.+)", re.DOTALL)
# Guard events that say one of these changed nothing; all others are told at the top of the page.
_QUIET = {"ok", "none", "keep", "kept", "pass", "passed", "continue"}


def duration(seconds: float) -> str:
    """Seconds for people: 43 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def headline(run: RunRecord) -> str:
    """What was done, in a sentence, a row of numbers, and whatever must not be missed."""
    name = run.recipe.get("name") or "custom"
    backbone = run.recipe.get("network", {}).get("backbone", "the network")
    rounds = len(run.recipe.get("rounds", [])) or len(run.rounds)
    word = "Learned" if run.finished else "Learning"
    lead = (
        f"Recipe <b>{escape(str(name))}</b> on {escape(str(backbone))}: {_count(rounds, 'round')}, "
        f"{_count(run.steps, 'step')}. "
        f"Photos in <code>{escape(str(run.root))}</code>. "
    )
    lead += (
        "Labels served to measure only: training never saw them."
        if run.labelled
        else "No labels were used or needed."
    )
    return (
        f'<header><div class="over">InsCLR run report</div>'
        f"<h1>{word} the particular things in {_count(run.usable, 'photo')}</h1>"
        f'<p class="lead">{lead}</p></header>\n'
        f"{_cards(run)}{_notices(run)}"
    )


def calibration(run: RunRecord) -> str:
    """Every number that the collection itself decided, round by round with the reason; then the fixed ones."""
    starts = [(one.number, one.event("start")) for one in run.rounds if one.event("start")]
    if not starts:
        return ""
    values: dict[str, dict[int, str]] = {}
    why: dict[str, list[str]] = {}
    others: list[str] = []
    for number, start in starts:
        for reason in start.get("reasons") or []:
            match = _REASON.fullmatch(str(reason))
            if match is None:
                others.append(f"Round {number}: {reason}")
                continue
            values.setdefault(match[1], {})[number] = match[2].strip()
            if match[3] not in why.setdefault(match[1], []):
                why[match[1]].append(match[3])
    numbers = [number for number, _ in starts]
    rows = [
        [_knob(name), *(by_round.get(number, "") for number in numbers), escape("; ".join(why[name]))]
        for name, by_round in values.items()
    ]
    body = _table(["Setting", *(f"Round {number}" for number in numbers), "Why"], rows) if rows else ""
    if others:
        body += f'<ul class="plain">{"".join(f"<li>{escape(text)}</li>" for text in others)}</ul>'
    if not body:
        body = "<p>Nothing: every number was fixed by the recipe.</p>"
    return body + _kept_start(run) + _fixed(starts, set(values))


def guard(run: RunRecord) -> str:
    """What the guard noticed and did."""
    events = [event for event in run.events if event["event"] == "guard"]
    if not events:
        if not run.recipe.get("guard"):
            return "<p>The guard was off in this recipe.</p>"
        return "<p>The guard was on and reported nothing.</p>"
    rows = []
    for event in events:
        known = {"round", "step", "event", "message"}
        rest = {key: value for key, value in event.items() if key not in known and value is not None}
        details = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in rest.items())
        step = f", step {event['step']}" if event["step"] > 0 else ""
        told = escape(str(event.get("message", "")))
        small = f'<span class="soft">{escape(details)}</span>' if details else ""
        rows.append([f"Round {event['round']}{step}", told + small])
    return _table(["When", "What"], rows, number_columns=False)


def skipped_files(run: RunRecord) -> str:
    """The files that could not be used, each with its reason."""
    if not run.skipped:
        return ""
    rows = [
        f'<tr><td class="path">{escape(path)}</td><td>{escape(reason)}</td></tr>'
        for path, reason in run.skipped[:_SKIPPED_SHOWN]
    ]
    more = len(run.skipped) - _SKIPPED_SHOWN
    if more > 0:
        rows.append(f'<tr><td colspan="2">… and {more:,} more in skipped.csv</td></tr>')
    return f'<div class="scroll"><table><tr><th>File</th><th>Reason</th></tr>{"".join(rows)}</table></div>'


def recipe_text(run: RunRecord) -> str:
    """The recipe, folded away."""
    return f"<details><summary>recipe.toml</summary><pre>{escape(run.recipe_text)}</pre></details>"


def _cards(run: RunRecord) -> str:
    cards = []
    maps = [value for _, value in run.maps()]
    if len(maps) > 1:
        gain = maps[-1] - maps[0]
        way = "up" if gain >= 0 else "down"
        word = "before → after" if run.finished else "before → so far"
        cards.append(
            f'<div class="card wide"><b>{maps[0]:.1f} → {maps[-1]:.1f} <span class="{way}">{gain:+.1f}</span></b>'
            f"<span>mAP, {word}</span></div>"
        )
    elif maps:
        cards.append(_card(f"{maps[0]:.1f}", "mAP before"))
    cards.append(
        _card(f"{run.images:,}", "photos" + (f", {len(run.skipped):,} left out" if run.skipped else ""))
    )
    seconds, told = _seconds(run)
    if seconds:
        cards.append(_card(duration(seconds), told))
    for key, name in (("batch_positives", "in the batch"), ("bank_positives", "in the memory")):
        points = run.curve(key)
        if points and any(y for _, y in points):
            first, last = points[0][1], points[-1][1]
            cards.append(_card(f"{first:.1f} → {last:.1f}", f"positives per anchor {name}"))
    return f'<div class="cards">{"".join(cards)}</div>\n'


def _seconds(run: RunRecord) -> tuple[float, str]:
    whole = [event["seconds"] for event in run.events if event["event"] == "finish" and event.get("seconds")]
    if whole:
        return float(whole[-1]), "from start to end"
    return sum(one.seconds for one in run.rounds), "of training"


def _notices(run: RunRecord) -> str:
    notices = []
    if not run.finished:
        at = f"round {run.rounds[-1].number}, step {run.rounds[-1].done:,}" if run.rounds else "its beginning"
        notices.append(
            (
                f"This run is not finished: it has come to {at}.",
                "It may still be at work. If it was interrupted, the same command with --resume goes on from there.",
            )
        )
    notices += [
        ("The guard stepped in", str(event["message"]))
        for event in run.events
        if event["event"] == "guard"
        and event.get("message")
        and str(event.get("action", "")).lower() not in _QUIET
    ]
    return "".join(
        f'<div class="note-box"><b>{escape(title)}</b>{escape(text)}</div>\n' for title, text in notices
    )


def _kept_start(run: RunRecord) -> str:
    share = run.recipe.get("network", {}).get("keep_start", 0.0)
    if not share or not run.finished or not run.steps:  # without a step the layer is its start
        return ""
    return (
        f"<p>In the end the last layer was mixed with its start, {share:.0%} of it, "
        f"so that it keeps what it knew of things that are not in these photos.</p>"
    )


def _fixed(starts: Iterable[tuple[int, Record]], calibrated: set[str]) -> str:
    """The settings in force that the recipe fixed, folded away."""
    starts = list(starts)
    tables = [{"pool": start.get("pool")} | (start.get("criteria") or {}) for _, start in starts]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = [
        [_knob(name), *(_value(table.get(name)) for table in tables)]
        for name in names
        if name not in calibrated and _RENAMED.get(name) not in calibrated
    ]
    if not rows:
        return ""
    table = _table(["Setting", *(f"Round {number}" for number, _ in starts)], rows)
    return f"<details><summary>Settings that the recipe fixed</summary>{table}</details>"


# A criterion whose knob in the recipe has another name.
_RENAMED = {"floor": "memory_floor"}
_DOCS = {entry.name: str(entry.metadata.get("doc", "")) for part in () for entry in part} | {
    "pool": "P: size of the candidate pool",
    "method": "of the paper's A, B, C, D-anchor, D",
}


def _knob(name: str) -> str:
    about = _DOCS.get(_RENAMED.get(name, name), "")
    return f"<code>{escape(name)}</code>" + (f'<span class="soft">{escape(about)}</span>' if about else "")


def _value(value: Any) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return short(value)
    return escape(str(value))


def _table(heads: list[str], rows: list[list[str]], *, number_columns: bool = True) -> str:
    """A table of ready HTML cells; the columns called Round hold numbers."""
    kinds = [' class="number"' if number_columns and head.startswith("Round") else "" for head in heads]
    top = "".join(f"<th{kind}>{escape(head)}</th>" for head, kind in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def _card(number: str, text: str) -> str:
    return f'<div class="card"><b>{escape(number)}</b><span>{escape(text)}</span></div>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""The tables of a run report: key numbers, notices, calibrated settings with their reasons, events of the guard."""

import re
from dataclasses import dataclass
from typing import Any

from insclr.report.charts import short
from insclr.report.page import duration
from insclr.report.run_record import RunRecord

# "margin = 0.203: 10% of random pairs are more similar"
_REASON = re.compile(r"(\w+) = ([^:]+): (.+)", re.DOTALL)
# Guard events with one of these actions changed nothing; all others are shown at the top of the page.
_QUIET = {"ok", "none", "keep", "kept", "pass", "passed", "continue"}


@dataclass(frozen=True)
class Card:
    """A key number and what it is; `gain` is drawn in green or red."""

    number: str
    text: str
    gain: float | None = None


@dataclass(frozen=True)
class Setting:
    """A measured setting: its value in every round, and why."""

    name: str
    values: list[str]
    why: str


@dataclass(frozen=True)
class Calibration:
    """Numbers measured on the collection."""

    rounds: list[int]
    calibrated: list[Setting]
    remarks: list[str]
    initial_fc_weight: float  # of the initial FC in the final average; 0 where they were not averaged
    renewed: bool  # the FC of the model was computed again after the last round


def cards(run: RunRecord) -> list[Card]:
    """The row of key numbers."""
    shown = []
    searched = run.measured.get("map")
    if searched:
        before, after = float(searched["before"]), float(searched["after"])
        text = "mAP of search, pretrained network → after training"
        shown.append(Card(f"{before:.1f} → {after:.1f}", text, gain=after - before))
    else:
        shown += _training_cards(run)
    left_out = f", {len(run.skipped):,} left out" if run.skipped else ""
    shown.append(Card(f"{run.images:,}", f"photos{left_out}"))
    seconds, text = _seconds(run)
    if seconds:
        shown.append(Card(duration(seconds), text))
    return shown


def _training_cards(run: RunRecord) -> list[Card]:
    """mAP as the run measured it: with one view of each photo, from the initial FC or pretrained features on."""
    maps = [value for _, value in run.maps()]
    is_random = run.recipe.get("network", {}).get("initial_fc", "random") == "random"
    start = "pretrained features" if is_random else "initial FC"
    sampled = max((int(event.get("map_queries") or 0) for event in run.events), default=0)
    view = "one view a photo" + (f", of {sampled:,} queries drawn at random" if sampled else "")
    if len(maps) > 1:
        end = "end" if run.finished else "so far"
        text = f"mAP along training, {view}: {start} → {end}"
        return [Card(f"{maps[0]:.1f} → {maps[-1]:.1f}", text, gain=maps[-1] - maps[0])]
    return [Card(f"{maps[0]:.1f}", f"mAP with the {start}, {view}")] if maps else []


def method_cards(run: RunRecord) -> list[Card]:
    """Key numbers in the terms of the method."""
    shown = _training_cards(run) if run.measured.get("map") else []
    for key, place in (("batch_positives", "in the batch"), ("bank_positives", "from the candidate pool")):
        values = [value for _, value in run.curve(key)]
        if any(values):
            shown.append(Card(f"{values[0]:.1f} → {values[-1]:.1f}", f"positives per anchor {place}"))
    return shown


def notices(run: RunRecord) -> list[tuple[str, str]]:
    """Warnings at the top of the page, each as title and text."""
    shown = []
    if run.learned_from_labels:
        text = "Its numbers are measured on the labels it was trained with: an upper bound for methods without them."
        shown.append(("This run learned from the labels.", text))
    if not run.finished:
        at = f"round {run.rounds[-1].number}, step {run.rounds[-1].done:,}" if run.rounds else "its beginning"
        text = (
            "It may still be running. If it was interrupted, continue it by the same command with `--resume`."
        )
        shown.append((f"This run is not finished: it has come to {at}.", text))
    shown += [
        ("The guard stepped in", str(event["message"]))
        for event in run.events
        if event["event"] == "guard"
        and event.get("message")
        and str(event.get("action", "")).lower() not in _QUIET
    ]
    return shown


def calibration(run: RunRecord) -> Calibration | None:
    """Every number that was measured on the collection, by round and with the reason; None before a round began."""
    starts = {one.number: one.event("start") for one in run.rounds if one.event("start")}
    if not starts:
        return None
    values: dict[str, dict[int, str]] = {}  # by name and round
    why: dict[str, list[str]] = {}
    remarks = [f"Before round 1: {run.size}."] if run.size else []
    for number, start in starts.items():
        for reason in start.get("reasons") or []:
            match = _REASON.fullmatch(str(reason))
            if match is None:
                remarks.append(f"Round {number}: {reason}")
                continue
            name, value, because = match.groups()
            values.setdefault(name, {})[number] = value.strip()
            if because not in why.setdefault(name, []):
                why[name].append(because)
    initial_fc_weight = run.recipe.get("network", {}).get("initial_fc_weight", 0.0)
    renewed = any(event.get("event") == "renewed" for event in run.events)
    return Calibration(
        rounds=list(starts),
        calibrated=[
            Setting(name, [by_round.get(n, "") for n in starts], "; ".join(why[name]))
            for name, by_round in values.items()
        ],
        remarks=remarks,
        # Without a step the FC still is the initial one.
        initial_fc_weight=initial_fc_weight if run.finished and run.steps and not renewed else 0.0,
        renewed=renewed,
    )


def guard_events(run: RunRecord) -> list[tuple[str, str, str]]:
    """When the guard measured the run, its message and its numbers, in order."""
    events = []
    for event in run.events:
        if event["event"] == "guard":
            known = {"round", "step", "event", "message"}
            numbers = {key: value for key, value in event.items() if key not in known and value is not None}
            details = ", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in numbers.items())
            step = f", step {event['step']}" if event["step"] > 0 else ""
            events.append((f"Round {event['round']}{step}", str(event.get("message", "")), details))
    return events


def _seconds(run: RunRecord) -> tuple[float, str]:
    whole = [event["seconds"] for event in run.events if event["event"] == "finish" and event.get("seconds")]
    if whole:
        return float(whole[-1]), "from start to end"
    return sum(one.seconds for one in run.rounds), "of training"


def _value(value: Any) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return short(value)
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    return str(value)

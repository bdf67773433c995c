"""The measured results on a model card: figures and counts, without names of images or instances."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from insclr.errors import UserError
from insclr.files import read_bytes

_LIMIT = 20_000_000  # bytes of a results file
_FIGURE = re.compile(r"map|(map|mp|r)@\d+")
_NAME = re.compile(r"[a-z0-9_.-]{1,40}")  # of a protocol or one of its settings


@dataclass(frozen=True)
class Result:
    """Figures in percent, by their names, and what they were measured on."""

    measured_on: str
    figures: Mapping[str, float]
    benchmark: str = ""  # the public one, where it is one


def read_results(file: Path) -> list[Result]:
    """The figures in what `insclr evaluate --json FILE` wrote."""
    try:
        content = json.loads(read_bytes(file, _LIMIT))
    except FileNotFoundError:
        raise UserError(f"There is no results file {file}: insclr evaluate --json writes one.") from None
    except ValueError:
        content = None
    found = _label_results(content) or _protocol_results(content)
    if not found:
        raise UserError(f"{file} holds no figures: give what `insclr evaluate MODEL ... --json FILE` wrote.")
    return found


def _label_results(content: Any) -> list[Result]:
    """Leave-one-out over a labels file. Its instances and worst queries have names that stay here."""
    if not isinstance(content, dict) or "protocol" in content:
        return []
    figures = _figures(content)
    counts = f"{_count(content, 'queries')} queries among {_count(content, 'images')} images"
    return [Result(f"own labelled images, leave-one-out, {counts}", figures)] if "map" in figures else []


def _protocol_results(content: Any) -> list[Result]:
    """A public benchmark, a row a setting."""
    if not isinstance(content, dict) or not _NAME.fullmatch(str(content.get("protocol", ""))):
        return []
    name = str(content["protocol"])
    settings = {"": content} | {key: value for key, value in content.items() if _NAME.fullmatch(key)}
    missing = content.get("missing")
    left_out = f"; {len(missing)} images were missing: not comparable" if missing else ""
    found = []
    for setting, table in settings.items():
        if isinstance(table, dict) and (figures := _figures(table)):
            of = f"{_count(table, 'queries')} queries among {_count(content, 'images')} images"
            found.append(Result(f"{name} {setting}".strip() + f", {of}{left_out}", figures, name))
    return found


def run_results(measured: Mapping[str, Any], log: list[dict[str, Any]]) -> list[Result]:
    """What a run folder holds: the demo's before and after, or the mAP that a training logged."""
    where = "the images that it was trained on"
    seen = measured.get("map")
    if isinstance(seen, dict) and (after := _figures({"map": seen.get("after")})):
        before = _figures({"map": seen.get("before")})
        return [*([Result(f"{where}: before training", before)] if before else []), Result(where, after)]
    ends = [record for record in log if record.get("event") == "finish"]
    last = ends[-1] if ends else {}
    figures = _figures({"map": last.get("map"), "r@1": last.get("recall_at_1")})
    return [Result(f"{where}, as logged by the training", figures)] if figures else []


def _figures(table: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in table.items()
        if _FIGURE.fullmatch(key) and isinstance(value, int | float) and math.isfinite(value)
    }


def _count(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    return f"{value:,}" if isinstance(value, int) else "an unknown number of"

"""The inspector: what the method decided for some anchors, at several moments of the run, as thumbnails."""

from dataclasses import dataclass

from insclr.report.charts import percentage
from insclr.report.page import Sample, Thumbnails, Tile, TileGroup
from insclr.report.run_record import Record, RunRecord

_MOMENTS = 6  # most moments of the run to choose from
_MINED = 14  # most mined images drawn for one anchor
# (taken as positive, right by the labels) -> frame and symbol of the tile
_KINDS: dict[tuple[bool, bool | None], tuple[str, str]] = {
    (True, True): ("right", "✓"),
    (True, False): ("wrong", "✗"),
    (False, True): ("missed", "○"),
}


@dataclass(frozen=True)
class InspectedMoment:
    """One tab: what the method decided then."""

    name: str
    labelled: bool
    summary: str
    repeats: list[tuple[str, str]]  # each repeat of the mining, and what it added
    samples: list[Sample]


def inspector(run: RunRecord, thumbnails: Thumbnails) -> list[InspectedMoment]:
    """The same anchors at the start of the run and after each round, thinned out evenly where there are many."""
    moments = run.inspections
    if len(moments) > _MOMENTS:
        moments = [moments[round(i * (len(moments) - 1) / (_MOMENTS - 1))] for i in range(_MOMENTS)]
    # The page has room for so many thumbnails: the last moment, shown first, must have all of its own.
    return [_moment(name, inspection, thumbnails) for name, inspection in reversed(moments)][::-1]


def _moment(name: str, inspection: Record, thumbnails: Thumbnails) -> InspectedMoment:
    summary = inspection.get("summary") or {}
    parts = [
        _positives(summary, "batch", "positives in its tuple"),
        _positives(summary, "memory", "from its candidate pool"),
    ]
    text = " and ".join(part for part in parts if part)
    repeats = [key for key in summary if key.startswith("repeat ")]
    mines = bool(
        summary.get("memory", {}).get("positives")
    )  # some methods take positives from the tuple only
    return InspectedMoment(
        name=name,
        labelled=bool(inspection.get("labelled")),
        summary=f"Over {summary.get('anchors', 0):,} random anchors, each has {text}." if text else "",
        repeats=[(key, _positives(summary, key, "mined")) for key in repeats if len(repeats) > 1],
        samples=[_sample(one, thumbnails, mines) for one in inspection.get("tuples", [])],
    )


def _positives(summary: Record, key: str, text: str) -> str:
    kind = summary.get(key)
    if not kind:
        return ""
    share = kind.get("precision")
    right = f" ({percentage(share)} right)" if share is not None else ""
    return f"{kind['positives']:.1f} {text}{right}"


def _sample(one: Record, thumbnails: Thumbnails, mines: bool) -> Sample:
    mined = one.get("mined", [])
    more = f"+ {len(mined) - _MINED} more" if len(mined) > _MINED else ""
    groups = [
        TileGroup("Tuple", [_tile(image, image["selected"], thumbnails) for image in one["members"]]),
        TileGroup(
            "Mined from the candidate pool",
            [_tile(image, True, thumbnails) for image in mined[:_MINED]],
            more="nothing" if mines and not mined else more,
        ),
        TileGroup(
            "Next in line, passed over", [_tile(image, False, thumbnails) for image in one.get("passed", [])]
        ),
    ]
    shown = [group for group in groups if group.tiles or group.more]
    return Sample(one["anchor"], thumbnails.css_class(one["anchor"]), shown)


def _tile(image: Record, taken: bool, thumbnails: Thumbnails) -> Tile:
    kind, symbol = _KINDS.get((taken, image.get("right")), ("taken" if taken else "left", ""))
    similarity, score, repeat = image["similarity"], image.get("score"), image.get("repeat")
    lines = [image["path"], f"similarity to the anchor {similarity:.3f}"]
    if score is not None:
        lines.append(f"similarity to the query set {score:.3f}")
    return Tile(
        path=image["path"],
        thumbnail=thumbnails.css_class(image["path"]),
        kind=kind,
        symbol=symbol,
        caption=f"{similarity if score is None else score:.2f}",
        title="\n".join(lines),
        badge=str(int(repeat)) if repeat else "",
    )

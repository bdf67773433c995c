"""The pseudo-positive inspector: sample tuples with what was mined for them, as thumbnails."""

from html import escape
from typing import Any

from insclr.report.charts import percentage
from insclr.report.run_record import RunRecord
from insclr.report.thumbnails import Thumbnails

_STATES = 6  # most moments of the run to choose from
_MINED = 14  # most mined pictures drawn for one anchor


def inspector(run: RunRecord, thumbnails: Thumbnails) -> str:
    """The same anchors at the run's start and at the end of each round, one tab each."""
    states = _states(run)
    if not states:
        return ""
    # The page has room for so many thumbnails: the last state, shown first, must have all of its own.
    panels = [_panel(look, thumbnails) for _, look in reversed(states)][::-1]
    last = len(states) - 1
    radios = "".join(
        f'<input class="look" type="radio" name="look" id="look-{i}"{" checked" if i == last else ""}>'
        for i in range(len(states))
    )
    labels = "".join(f'<label for="look-{i}">{escape(name)}</label>' for i, (name, _) in enumerate(states))
    bodies = "".join(f'<div class="state state-{i}">{panel}</div>\n' for i, panel in enumerate(panels))
    return f'<div>{radios}<div class="tabs">{labels}</div>\n{_legend(states[-1][1])}{bodies}</div>'


def inspector_style() -> str:
    """The rules that show the chosen tab: no script needed."""
    shown = ", ".join(f"#look-{i}:checked ~ .state-{i}" for i in range(_STATES))
    picked = ", ".join(f'#look-{i}:checked ~ .tabs [for="look-{i}"]' for i in range(_STATES))
    focused = ", ".join(f'#look-{i}:focus-visible ~ .tabs [for="look-{i}"]' for i in range(_STATES))
    return (
        f"{shown} {{ display: block; }}\n"
        f"{picked} {{ background: var(--text); color: var(--card); border-color: var(--text); }}\n"
        f"{focused} {{ outline: 2px solid var(--accent); outline-offset: 2px; }}\n"
    )


def _states(run: RunRecord) -> list[tuple[str, dict[str, Any]]]:
    """The start of the run and the end of every round, thinned out evenly where there are many."""
    looks = [
        (f"Round {one.number}, {name}", one.inspections[name])
        for place, one in enumerate(run.rounds)
        for name in ("start", "end")
        # A round starts with the network that the one before ended with: its end says more.
        if name in one.inspections and (name == "end" or place == 0 or "end" not in one.inspections)
    ]
    if len(looks) > _STATES:
        looks = [looks[round(i * (len(looks) - 1) / (_STATES - 1))] for i in range(_STATES)]
    return looks


def _legend(look: dict[str, Any]) -> str:
    items = ['<span><b class="badge-key">1, 2, …</b> the repeat that mined it</span>']
    if look.get("labelled"):
        items = [
            '<span><i class="key right"></i>✓ taken, and right</span>',
            '<span><i class="key wrong"></i>✗ taken, but wrong</span>',
            '<span><i class="key missed"></i>○ right, but not taken</span>',
            *items,
        ]
    items.append("<span>below: similarity to the anchor; for mined ones, to the query set</span>")
    return f'<div class="legend-row">{"".join(items)}</div>\n'


def _panel(look: dict[str, Any], thumbnails: Thumbnails) -> str:
    mines = "memory" in look.get("summary", {})
    return _summary(look) + "".join(_tuple(one, thumbnails, mines) for one in look.get("tuples", []))


def _summary(look: dict[str, Any]) -> str:
    summary = look.get("summary", {})

    def line(key: str, text: str) -> str:
        kind = summary.get(key)
        if not kind:
            return ""
        share = kind.get("precision")
        right = f" ({percentage(share)} right)" if share is not None else ""
        return f"{kind['positives']:.1f} {text}{right}"

    parts = [line("batch", "taken in the tuple"), line("memory", "mined from the memory")]
    repeats = [name for name in summary if name.startswith("repeat ")]
    text = " and ".join(part for part in parts if part)
    if not text:
        return ""
    chips = [f"<span><b>{name}</b> {line(name, 'mined')}</span>" for name in repeats if len(repeats) > 1]
    return (
        f"<p>Over {summary.get('anchors', 0):,} random anchors, each has {text}.</p>\n"
        f'<div class="chips">{"".join(chips)}</div>\n'
    )


def _tuple(one: dict[str, Any], thumbnails: Thumbnails, mines: bool) -> str:
    anchor = one["anchor"]
    mined = one.get("mined", [])
    members = "".join(_tile(picture, picture["selected"], thumbnails) for picture in one["members"])
    groups = [_group("Tuple", members)]
    tiles = "".join(_tile(picture, True, thumbnails) for picture in mined[:_MINED])
    if len(mined) > _MINED:
        tiles += f'<span class="more">+ {len(mined) - _MINED} more</span>'
    if not mined and mines:
        tiles = '<span class="more">nothing</span>'
    groups.append(_group("Mined from the memory", tiles))
    passed = "".join(_tile(picture, False, thumbnails) for picture in one.get("passed", []))
    groups.append(_group("Next in line, passed over", passed))
    return (
        f'<article class="tuple"><div class="anchor"><h4>Anchor</h4>{_picture(anchor, thumbnails)}'
        f'<span>{escape(anchor)}</span></div><div class="groups">{"".join(groups)}</div></article>\n'
    )


def _group(title: str, tiles: str) -> str:
    return f'<div class="group"><h4>{title}</h4><div class="row">{tiles}</div></div>' if tiles else ""


def _tile(picture: dict[str, Any], taken: bool, thumbnails: Thumbnails) -> str:
    right: bool | None = picture.get("right")
    verdicts: dict[tuple[bool, bool | None], tuple[str, str]] = {
        (True, True): ("right", "✓"),
        (True, False): ("wrong", "✗"),
        (False, True): ("missed", "○"),
    }
    kind, symbol = verdicts.get((taken, right), ("taken" if taken else "left", ""))
    score = picture.get("score")
    shown = picture["similarity"] if score is None else score
    told = [picture["path"], f"similarity to the anchor {picture['similarity']:.3f}"]
    if score is not None:
        told.append(f"similarity to the query set {score:.3f}")
    repeat = picture.get("repeat")
    badge = f'<b class="badge">{int(repeat)}</b>' if repeat else ""
    mark = f"<em>{symbol}</em> " if symbol else ""
    return (
        f'<figure class="tile {kind}" title="{escape(chr(10).join(told))}">{_picture(picture["path"], thumbnails)}'
        f"{badge}<figcaption>{mark}{shown:.2f}</figcaption></figure>"
    )


def _picture(path: str, thumbnails: Thumbnails) -> str:
    name = thumbnails.css_class(path)
    label = f'role="img" aria-label="{escape(path)}"'
    if name:
        return f'<i class="pic {name}" {label}></i>'
    return f'<i class="pic" {label}>{escape(path.rsplit("/", 1)[-1])}</i>'

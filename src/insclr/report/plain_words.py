"""What a run means, in words for people: what was learned, what to do next, what was left out and why."""

from collections import Counter

from insclr.report.run_record import RunRecord

_REASONS = 4  # told; the table has them all


def plain_words(run: RunRecord) -> list[tuple[str, str]]:
    """Questions that a person has, with their answers."""
    return [
        ("What was learned?", _learned(run)),
        ("Is search better?", _better(run)),
        ("What was left out?", _left_out(run)),
        ("What next?", _following(run)),
    ]


def _learned(run: RunRecord) -> str:
    last = next((one.event("start") for one in reversed(run.rounds) if one.event("start")), {})
    groups, grouped = int(last.get("groups") or 0), int(last.get("grouped") or 0)
    if not run.steps:
        told = (
            "Nothing new: too few photos show the same thing for it to be safe. The network is the one it started "
            "from, adjusted to the look of your photos."
        )
    elif groups:
        alone = run.usable - grouped
        told = (
            f"To tell things apart by {groups:,} groups of photos that look like one thing each "
            f"({grouped:,} photos; the other {alone:,} are like no other photo, or nobody can be sure)."
        )
    else:
        told = f"To tell things apart by what the {run.usable:,} photos have in common."
    taught = (last.get("criteria") or {}).get("taught")
    if taught:
        told += (
            f" {taught:,} photos are in groups that people named or answered about: there their word counted."
        )
    return told


def _better(run: RunRecord) -> str:
    judged, searched = run.measured.get("proof"), run.measured.get("map")
    maps = [value for _, value in run.maps()]
    told = []
    if judged:
        told.append("By your own judgement of results drawn by chance, with 95 % intervals:")
        told += [f"{one['title']}: {one['sentence']}." for one in judged]
    if searched:
        told.append(
            f"By the labels, search has {searched['after']:.1f} of 100 points (mean average precision) where the "
            f"pretrained network has {searched['before']:.1f}, both with {searched['views']} views of every photo, "
            "as `insclr index` describes them."
        )
    elif len(maps) > 1:
        told.append(
            "By the labels, along training, with one view of every photo, "
            f"mean average precision went from {maps[0]:.1f} to {maps[-1]:.1f}. It begins where the last layer is "
            "fitted to the photos without training, not at the pretrained network."
        )
    if not told:
        told.append(
            "Only you can say: judge 30 results on the Teach page of `insclr serve STORE`. What you find is "
            "then told here."
        )
    return "\n".join(told)


def _left_out(run: RunRecord) -> str:
    if not run.skipped:
        return "Nothing: every photo could be read."
    reasons = Counter(reason.split(":")[0] for _, reason in run.skipped).most_common(_REASONS)
    told = "; ".join(f"{count:,} {reason}" for reason, count in reasons)
    return f"{len(run.skipped):,} of {run.images:,} files could not be used: {told}. The list is below."


def _following(run: RunRecord) -> str:
    if not run.finished:
        return "Let it finish; if it was interrupted, give the same command with `--resume`."
    return (
        f"Search: `insclr index {run.name} PHOTOS --store STORE`, then `insclr serve STORE`. On the page, name the "
        "things you know and answer a few screens: then `insclr learn STORE --out FOLDER` makes a better model."
    )

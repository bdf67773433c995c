"""report.html of a run: one self-contained page, with plain answers first and the method's numbers below."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from insclr.feedback.feedback import ENOUGH, FairSample, FirstResults, read_feedback
from insclr.report.curves import similarity_histograms, training_curves
from insclr.report.inspector import inspector
from insclr.report.page import Thumbnails, write_page
from insclr.report.run_record import RunRecord
from insclr.report.summary import calibration, cards, guard_events, method_cards, notices
from insclr.run_folder import kept_recipe, note_measured
from insclr.store import Store

_MAX_SKIPPED_ROWS = 50
_MAX_REASONS = 4  # in the sentence; the table has them all


def write_report(run: Path | str) -> Path:
    """Write report.html into a run folder, finished or not, from what the folder holds; give back its path."""
    record = RunRecord(Path(run))
    thumbnails = Thumbnails(record.root)
    moments = inspector(record, thumbnails)
    write_page(
        record.report_file,
        "run.html",
        run=record,
        cards=cards(record),
        answers=[
            ("What was learned?", _what_was_learned(record)),
            ("Is search better?", _is_search_better(record)),
            ("What was left out?", _what_was_left_out(record)),
            ("What next?", _what_next(record)),
        ],
        method_cards=method_cards(record),
        notices=notices(record),
        curves=training_curves(record),
        moments=moments,
        histograms=similarity_histograms(record),
        calibration=calibration(record),
        guard_events=guard_events(record),
        skipped_shown=_MAX_SKIPPED_ROWS,
        jpegs=thumbnails.jpegs,
    )
    return record.report_file


def report_proof(stores: Sequence[Store], titles: Sequence[str]) -> list[str]:
    """How precise search is with each store, in words; the first store's judgements count for all.

    Once enough results are judged, the report of the first store's run shows it too.
    """
    sample = FairSample([FirstResults(one) for one in stores], read_feedback(stores[0]))
    found = [sample.precision(place) for place in range(len(stores))]
    run = Path(stores[0].info.model)
    if found[0].answers >= ENOUGH and kept_recipe(run) is not None:
        told = [
            {"title": title, "sentence": one.sentence(), "right": one.right, "judged": one.judged}
            for title, one in zip(titles, found, strict=True)
        ]
        # Oldest first, as one reads: before, then after.
        note_measured(run, proof=told[::-1])
        write_report(run)
    return [one.sentence() for one in found]


def _what_was_learned(run: RunRecord) -> str:
    last = next((one.event("start") for one in reversed(run.rounds) if one.event("start")), {})
    groups, grouped = int(last.get("groups") or 0), int(last.get("grouped") or 0)
    if not run.steps:
        answer = (
            "Nothing new: too few photos show the same thing for it to be safe. The network is the one it started "
            "from, adjusted to the look of your photos."
        )
    elif groups:
        answer = (
            f"To tell things apart by {groups:,} groups of photos that look like one thing each "
            f"({grouped:,} photos; the other {run.usable - grouped:,} are like no other photo, or that is unsure). "
            "The search page groups the photos anew with the trained model, so that its numbers differ."
        )
    else:
        answer = f"To tell things apart by what the {run.usable:,} photos have in common."
    criteria = last.get("criteria") or {}
    with_feedback = criteria.get("with_feedback") or criteria.get("taught")  # as older runs call it
    if with_feedback:
        answer += (
            f" {with_feedback:,} photos are in groups that people named or answered about, which were used."
        )
    return answer


def _is_search_better(run: RunRecord) -> str:
    judged, measured = run.measured.get("proof"), run.measured.get("map")
    maps = [value for _, value in run.maps()]
    lines = []
    if judged:
        lines.append("By your own judgement of results drawn at random, with 95 % intervals:")
        lines += [f"{one['title']}: {one['sentence']}." for one in judged]
    if measured:
        lines.append(
            f"By the labels, search has {measured['after']:.1f} of 100 points (mean average precision) where the "
            f"pretrained network has {measured['before']:.1f}, both with {measured['views']} views of every photo, "
            "as `insclr index` describes them."
        )
    elif len(maps) > 1:
        lines.append(
            "By the labels, along training, with one view of every photo, "
            f"mean average precision went from {maps[0]:.1f} to {maps[-1]:.1f}. It begins where the last layer is "
            "fitted to the photos without training, not at the pretrained network."
        )
    if not lines:
        return (
            "Judge 30 results on the Teach page of `insclr serve STORE`; `insclr answers proof STORE` then shows the "
            "result here."
        )
    return "\n".join(lines)


def _what_was_left_out(run: RunRecord) -> str:
    if not run.skipped:
        return "Nothing: every photo could be read."
    reasons = Counter(reason.split(":")[0] for _, reason in run.skipped).most_common(_MAX_REASONS)
    listed = "; ".join(f"{count:,} {reason}" for reason, count in reasons)
    if others := len(run.skipped) - sum(count for _, count in reasons):
        listed += f"; {others:,} for other reasons"
    return f"{len(run.skipped):,} of {run.images:,} files could not be used: {listed}. The list is below."


def _what_next(run: RunRecord) -> str:
    if not run.finished:
        return "Let it finish; if it was interrupted, give the same command with `--resume`."
    return (
        f"Search: `insclr index {run.name} PHOTOS --store STORE`, then `insclr serve STORE`. On the page, name the "
        "things you know and answer a few screens: then `insclr learn STORE` makes a better model."
    )

"""report.html of a run: one self-contained page."""

from pathlib import Path

from insclr.report.curves import similarity_histograms, training_curves
from insclr.report.inspector import inspector
from insclr.report.page import write_page
from insclr.report.plain_words import plain_words
from insclr.report.run_record import read_run
from insclr.report.summary import calibration, cards, engineers_cards, guard_events, notices
from insclr.report.thumbnails import Thumbnails

_SKIPPED_SHOWN = 50


def write_report(run: Path | str) -> Path:
    """Write report.html into a run folder, finished or not, from what the folder holds; give back its path."""
    record = read_run(Path(run))
    thumbnails = Thumbnails(record.root)
    moments = inspector(record, thumbnails)
    write_page(
        record.report_file,
        "run.html",
        run=record,
        cards=cards(record),
        words=plain_words(record),
        engineers_cards=engineers_cards(record),
        notices=notices(record),
        curves=training_curves(record),
        moments=moments,
        histograms=similarity_histograms(record),
        calibration=calibration(record),
        guard_events=guard_events(record),
        skipped_shown=_SKIPPED_SHOWN,
        jpegs=thumbnails.jpegs,
    )
    return record.report_file

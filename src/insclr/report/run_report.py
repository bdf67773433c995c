"""report.html of a run: one self-contained page."""

from pathlib import Path

from insclr.files import whole_file
from insclr.report.curves import similarity_histograms, training_curves
from insclr.report.inspector import inspector, inspector_style
from insclr.report.page import page, section
from insclr.report.run_record import read_run
from insclr.report.summary import calibration, guard, headline, recipe_text, skipped_files
from insclr.report.thumbnails import Thumbnails

REPORT_NAME = "report.html"


def write_report(run: Path | str) -> Path:
    """Write report.html into a run folder, finished or not, from what the folder holds; give back its path."""
    record = read_run(Path(run))
    thumbnails = Thumbnails(record.root)
    parts = [
        headline(record),
        section("Along training", "", training_curves(record)),
        section(
            "Pseudo-positive inspector",
            "What the mining takes for pictures of the same thing, for the same random anchors at several moments.",
            inspector(record, thumbnails),
        ),
        section(
            "Similarities",
            "Cosine of pairs of photos. The better the network, the further the nearest and the mined stand "
            "from random pairs. Every curve is drawn to the same height.",
            similarity_histograms(record),
        ),
        section(
            "What was calibrated, and why",
            "Numbers that the recipe leaves to the collection, measured without labels when a round begins.",
            calibration(record),
        ),
        section("The guard", "", guard(record)),
        section("Files left out", "", skipped_files(record)),
        section("Recipe", "Everything that is needed to repeat this run.", recipe_text(record)),
        "<footer>Written by insclr. This page holds everything it shows and loads nothing from elsewhere.</footer>",
    ]
    html = page(f"InsCLR run {record.path.name}", "\n".join(parts), inspector_style() + thumbnails.css())
    file = record.path / REPORT_NAME
    with whole_file(file) as scratch:
        # File names may hold bytes that are no text: a page shows them as question marks.
        scratch.write_text(html, encoding="utf-8", errors="replace")
    return file

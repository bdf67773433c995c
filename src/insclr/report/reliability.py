"""The reliability chart: the share of right matches by score, beside the ideal share."""

from pathlib import Path

from insclr.errors import UserError
from insclr.evaluation.calibration import ANSWERS, Calibration
from insclr.evaluation.results import LabelResult
from insclr.report.charts import Mark, Series, line_chart
from insclr.report.page import write_page
from insclr.retrieval.score import DISPLAY_THRESHOLD, SURE


def reliability_chart(title: str, measured: Calibration, answered: Calibration | None = None) -> str:
    """The chart as inline SVG: score across, share of right matches upwards, a dot for each tenth of the matches."""
    ideal = Series("ideal", [(0.0, 0.0), (100.0, 1.0)], colour=5, dashed=True)
    lines = [ideal, Series("without labels", _points(measured), colour=1, dots=True)]
    if answered:
        lines.append(Series(f"after {ANSWERS} answers", _points(answered), colour=2, dots=True))
    marks = [Mark(100 * DISPLAY_THRESHOLD, "display threshold"), Mark(100 * SURE, "sure")]
    return line_chart(
        title, lines, marks=marks, x_label="score, %", percent=True, from_zero=True, breaks=False
    )


def write_reliability(result: LabelResult, file: Path, title: str) -> None:
    """Write the page with the chart and the numbers of a result whose score was measured."""
    if result.calibration is None:
        raise UserError(
            "This result has no measured score: measure it with --labels, without --ranking regions."
        )
    rows = [("without labels", result.calibration)]
    if result.answered:
        rows.append((f"after {ANSWERS} answered pairs", result.answered))
    chart = reliability_chart(title, result.calibration, result.answered)
    write_page(file, "reliability.html", name=title, chart=chart, rows=rows, jpegs={})


def _points(measured: Calibration) -> list[tuple[float, float]]:
    """Points in ascending score, one for each score."""
    return sorted({100 * one.score: one.right for one in measured.bins}.items())

"""Judged results reach the report of the run whose model is searched."""

from pathlib import Path

from helpers.histogram_describer import HistogramDescriber, draw_things
from helpers.written_run import make_run
from insclr.data.images import list_images
from insclr.feedback.entries import judge
from insclr.feedback.feedback import FairSample, FirstResults, read_feedback
from insclr.report.run_report import report_proof
from insclr.retrieval.index import index_images
from insclr.store import open_store


def test_after_thirty_judged_results_the_report_gives_the_precision_of_search(tmp_path: Path) -> None:
    run = make_run(tmp_path, labelled=False)
    draw_things(tmp_path / "drawn", 5, 8)
    describer = HistogramDescriber()
    describer.name = str(run)
    index_images(describer, list_images(tmp_path / "drawn"), tmp_path / "store")
    store = open_store(tmp_path / "store")
    for number in range(30):
        assert report_proof([store], ["Now"]) == [f"{number} of 30 results judged"]
        assert not (run / "report.html").exists()
        draw = FairSample([FirstResults(store)], read_feedback(store)).draw()
        assert draw is not None
        # Every third is said to be wrong: 20 of 30 are right, 0.667; Wilson's interval by hand: 0.488 to 0.808.
        store.append([judge(draw.query, draw.result, draw.rank, same=number % 3 != 0, model=draw.model)])
    sentence = "67% of the first 5 results show the same thing (between 49% and 81%, from 30 judged results)"
    assert report_proof([store], ["Now"]) == [sentence]
    assert f"Now: {sentence}." in (run / "report.html").read_text(encoding="utf-8")
    store.close()

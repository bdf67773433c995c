"""The proof on one's own photos: from judged results to the report of the run that made the model."""

from collections.abc import Sequence
from pathlib import Path

from insclr.feedback.feedback import read_feedback
from insclr.feedback.proof import ENOUGH, FairSample, FirstResults
from insclr.report.run_report import write_report
from insclr.run_folder import kept_recipe, note_measured
from insclr.store import Store


def report_proof(stores: Sequence[Store], titles: Sequence[str]) -> list[str]:
    """How precise search is with each store, in words; the first store's judgements count for all.

    Once enough results are judged, the report of the first store's run shows it too.
    """
    sample = FairSample([FirstResults(one) for one in stores], read_feedback(stores[0]))
    found = [sample.precision(place) for place in range(len(stores))]
    run = Path(stores[0].info.model)
    if found[0].judged >= ENOUGH and kept_recipe(run) is not None:
        told = [
            {"title": title, "sentence": one.sentence(), "right": one.right, "judged": one.judged}
            for title, one in zip(titles, found, strict=True)
        ]
        # Oldest first, as one reads: before, then after.
        note_measured(run, proof=told[::-1])
        write_report(run)
    return [one.sentence() for one in found]

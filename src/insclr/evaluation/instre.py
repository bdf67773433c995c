"""INSTRE (Wang & Jiang 2015) with the queries of Iscen et al. 2017: 1,250 queries, 27,293 images."""

import zlib
from pathlib import Path

import scipy.io
from scipy.io.matlab import MatReadError

from insclr.data.images import ImageList
from insclr.errors import UserError
from insclr.evaluation.protocol import (
    Judgement,
    RetrievalProtocol,
    as_box,
    as_ids,
    check_rows,
    ground_truth_file,
    trapezoid_metric,
)

SOURCE = "the diffusion project of Iscen et al. (INSTRE ground truth)"


def load_instre(root: Path, ground_truth: Path | None = None) -> RetrievalProtocol:
    """INSTRE with its three folders INSTRE-S1, INSTRE-S2, INSTRE-M and gnd_instre.mat in `root`.

    `ok` counts from 1 and `bbx` is x1, y1, x2, y2: read otherwise, even a perfect ranking stays below 1.
    """
    file = ground_truth_file(root, ground_truth, "gnd_instre.mat", SOURCE)
    try:
        content = scipy.io.loadmat(file, simplify_cells=True)
        database, queries = [str(n) for n in content["imlist"]], [str(n) for n in content["qimlist"]]
        truth = [(as_ids(entry["ok"]) - 1, as_box(entry["bbx"])) for entry in content["gnd"]]
    # scipy passes on whatever a damaged file makes its parser do
    except (MatReadError, LookupError, TypeError, ValueError, RuntimeError, OSError, zlib.error) as error:
        raise UserError(
            f"{file}: not the INSTRE ground truth (imlist, qimlist, gnd of ok and bbx): {error}"
        ) from error
    if len(truth) != len(queries):
        raise UserError(f"{file}: {len(queries)} queries but {len(truth)} ground truths. Get it again.")
    judged = (
        Judgement(check_rows(file, query, positives, len(database)))
        for query, (positives, _) in zip(queries, truth, strict=True)
    )
    return RetrievalProtocol(
        name="instre",
        queries=ImageList(root, tuple(queries)),
        database=ImageList(root, tuple(database)),
        settings={"all": tuple(judged)},
        metric=trapezoid_metric,
        boxes=tuple(box for _, box in truth),
    )

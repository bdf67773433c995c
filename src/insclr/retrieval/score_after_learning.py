"""Scores after learning: as large a share of the matches is sure as with the model before.

A model that has learned from mined pairs agrees with itself: neighbours move together, right and wrong ones alike, so
that the scores of its own collection say too much (or too little, where all descriptors moved apart). Its order is
the better one. So the best matches of the new model are called sure, in the share that the curve of the model before
called so. Pairs that people decided need no curve and are left out of both.
"""

import numpy as np
from numpy.typing import NDArray

from insclr.arrays import Ids, Scores
from insclr.retrieval.ranking import Known
from insclr.retrieval.score import (
    SURE,
    Answer,
    ScoreCurve,
    fit_score_curve,
    nearest_others,
    score_curve_of,
    store_curve,
)
from insclr.store import Store

_QUERIES, _DEPTH, _ANSWERS = 1000, 50, 200


def keep_share_of_sure(before: Store, after: Store, known: Known) -> ScoreCurve:
    """Calibrate the store of a model that has learned by that of the model before, and keep the curve in it."""
    rows = [{row.image.hash: row.id for row in one.rows_by_path().values()} for one in (before, after)]
    common = sorted(rows[0].keys() & rows[1].keys())
    curve = score_curve_of(after)
    if curve.sure_from != SURE:  # a killed call did this already
        curve = fit_score_curve(after)
    if len(common) < 2:
        return store_curve(after, curve)
    chosen = np.random.default_rng(0).permutation(len(common))[:_QUERIES]
    queries = [common[place] for place in chosen]
    similar = []  # of pairs that people did not decide, in both stores
    for store, ids in zip((before, after), rows, strict=True):
        _, cosines, relations = _nearest_pairs(store, np.array([ids[one] for one in queries]), ids, known)
        similar.append(cosines[relations == 0])
    old, new = similar
    if not len(old) or not len(new):
        return store_curve(after, curve)
    share = float((score_curve_of(before).score(old) >= SURE).mean())
    sure_from = float(curve.score(np.quantile(new, [1 - share]))[0])
    return store_curve(after, curve.stretch(sure_from))


def draw_decided_pairs(store: Store, known: Known) -> list[Answer]:
    """Some pairs of a row and one of its nearest that people decided: they tell what matched points are worth."""
    rows = {row.image.hash: row.id for row in store.rows_by_path().values()}
    if len(rows) < 2:
        return []
    generator = np.random.default_rng(0)
    queries = generator.permutation(np.array(sorted(rows.values())))[:_QUERIES]
    near, _, relations = _nearest_pairs(store, queries, rows, known)
    decided = np.argwhere(relations != 0)
    chosen = generator.permutation(decided)[:_ANSWERS]
    return [Answer(int(queries[i]), int(near[i, k]), bool(relations[i, k] > 0)) for i, k in chosen]


def _nearest_pairs(
    store: Store, queries: Ids, rows: dict[str, int], known: Known
) -> tuple[Ids, Scores, NDArray[np.int64]]:
    """The nearest other rows of some rows, their similarities, and what people decided: 1, -1 or 0."""
    hash_of = {id_: image for image, id_ in rows.items()}
    near, similar = nearest_others(store, queries, min(_DEPTH, store.count() - 1))
    relations = [
        [known.relation({hash_of[query]}, hash_of.get(one, "")) for one in some]
        for query, some in zip(queries.tolist(), near.tolist(), strict=True)
    ]
    return near, similar, np.array(relations)

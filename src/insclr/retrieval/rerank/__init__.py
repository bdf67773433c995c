"""Re-ranking: functions from results to results, all with one signature.

    better = RERANKERS["alphaqe"](queries, database, rank(queries, database))

A re-ranker gives back the ids it was given, each row in a better order.
"""

from collections.abc import Callable

from insclr.arrays import Descriptors
from insclr.retrieval.rerank.diffusion import diffusion
from insclr.retrieval.rerank.query_expansion import alpha_qe
from insclr.retrieval.rerank.ranking import Ranking, rank
from insclr.retrieval.rerank.reciprocal import k_reciprocal

Reranker = Callable[[Descriptors, Descriptors, Ranking], Ranking]

RERANKERS: dict[str, Reranker] = {
    "alphaqe": alpha_qe,
    "diffusion": diffusion,
    "kreciprocal": k_reciprocal,
}

__all__ = ["RERANKERS", "Ranking", "Reranker", "rank"]

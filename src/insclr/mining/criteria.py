"""The numbers that decide in a round: the recipe's own, or calibrated ones where the recipe says auto."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Criteria:
    """What counts as positive, negative and neither, all as plain numbers."""

    method: Literal["A", "B", "C", "D-anchor", "D"]
    strategy: str  # of the selection in the batch; methods A and B take all neighbours
    batch_threshold: float  # T_b
    sparsity: float | None  # phi
    aggregate: Literal["mean", "max"]  # psi
    choose: Literal["topk", "threshold"]
    k: int
    memory_threshold: float  # T_m
    floor: float | None  # least S_set of a top-k choice
    repeats: int  # R
    random_negatives: int
    ignore_above: float | None
    ignore_nearest: int
    margin: float
    normalise: Literal["sum", "mean"]
    similarity: Literal["cosine", "overlap"] = "cosine"  # what decides, in every step or once a round
    memory_positives: bool = True  # whether mined candidates attract as bank rows
    pool_negatives: bool = True  # whether the rest of the pool is pushed away

    @property
    def mines_memory(self) -> bool:
        """Whether positives come from the memory bank too."""
        return self.method in ("D-anchor", "D")

    @property
    def random_memory(self) -> bool:
        """Whether random rows of the memory bank are negatives."""
        return self.method in ("B", "C") and self.random_negatives > 0

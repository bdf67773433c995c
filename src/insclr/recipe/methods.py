"""The settings of every method, one table each: `[rounds.method] name = "..."` says which one it is."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from insclr.recipe.rivals import (
    ArcfaceSettings,
    ByolSettings,
    ClusterContrastSettings,
    DeepClusterSettings,
    GemApSettings,
    ManifoldMiningSettings,
    MocoSettings,
    OracleSettings,
    PclSettings,
    ScanNnSettings,
    SimclrSettings,
    SwavSettings,
)
from insclr.recipe.tables import Auto, MethodTable, Off, setting

_PAPER_SCALES = (2**0.5, 1.0, 2**-0.5)


class InsclrSettings(MethodTable):
    """The paper's method: decides in every step, from two memory banks."""

    name: Literal["insclr"] = setting(
        "insclr", "the paper: select in the batch, mine the memory, in every step"
    )
    variant: Literal["A", "B", "C", "D-anchor", "D"] = setting(
        "D", "A nn; B nn + bank negatives; C selection + bank negatives; D-anchor, D memory mining"
    )
    neighbours: int = setting(3, "N_b: neighbours of the anchor in a tuple", ge=1)
    pool: int = setting(500, "P: size of the candidate pool", ge=2)
    strategy: Literal["nn", "augmented", "plain", "relative", "multiscale"] = setting(
        "plain", "positives in the mini-batch: all neighbours (nn), or by which similarity"
    )
    batch_threshold: float | Auto = setting(0.65, "T_b: cosine above which a tuple member is positive")
    scales: tuple[Annotated[float, Field(gt=0)], ...] = setting(
        _PAPER_SCALES,
        "strategy multiscale: sizes of the plain views, as multiples of plain_size",
        min_length=1,
    )
    sparsity: float | Auto | Off = setting("off", "phi: cosines to query-set members below it are dropped")
    aggregate: Literal["mean", "max"] = setting("mean", "psi: over the query set")
    choose: Literal["topk", "threshold"] = setting(
        "topk", "how candidates are chosen by their set similarity"
    )
    k: int = setting(5, "choose topk: candidates added per repeat", ge=1)
    memory_threshold: float | Auto = setting(0.6, "choose threshold: T_m")
    repeats: int = setting(4, "R: how often the query set grows", ge=1)
    candidates: Literal["anchor", "members"] = setting("anchor", "whose pools are searched for positives")
    accept_above: float | Off = setting(
        "off", "candidates with a pool cosine above this are positives at once"
    )
    ignore_above: float | Off = setting(
        "off", "unchosen candidates with a pool cosine above this are ignored"
    )
    ignore_nearest: int = setting(0, "an anchor's so many nearest images are never its negatives", ge=0)
    pool_negatives: bool = setting(True, "candidates that are not positive are negatives, from the bank")
    random_negatives: int = setting(100_000, "random bank rows used as negatives", ge=0)
    bank_from: int = setting(0, "step from which bank rows stand in the loss", ge=0)
    bank_dtype: Literal["fp32", "fp16"] = setting("fp32", "precision of the memory banks")

    @property
    def pool_fits(self) -> bool:
        """Whether the neighbours of a tuple leave candidates in the pool."""
        return self.pool > self.neighbours

    @property
    def mines_memory(self) -> bool:
        """Whether positives come from the memory bank too."""
        return self.variant in ("D-anchor", "D")

    @property
    def selection(self) -> str:
        """How members of a tuple are selected: variants A and B take all of them."""
        return "nn" if self.variant in ("A", "B") else self.strategy

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads beside the others."""
        variant = f'variant = "{self.variant}"'
        why = {}
        if self.variant in ("A", "B"):
            why["strategy"] = variant
        if self.selection == "nn":
            why["batch_threshold"] = f'strategy = "nn" (or {variant})'
        if self.selection != "multiscale":
            why["scales"] = f'strategy = "{self.selection}"'
        if not self.mines_memory:
            memory = ("sparsity", "aggregate", "choose", "k", "memory_threshold", "repeats", "candidates")
            why |= dict.fromkeys((*memory, "accept_above", "ignore_above", "pool_negatives"), variant)
        elif self.choose == "topk":
            why["memory_threshold"] = 'choose = "topk"'
        else:
            why["k"] = 'choose = "threshold"'
        if self.variant not in ("B", "C"):
            why["random_negatives"] = variant
        if self.variant == "A":
            why |= dict.fromkeys(("bank_from", "bank_dtype"), variant)
        return why


class CalibratedSettings(MethodTable):
    """What ships: decides once a round, by thresholds that the collection's own views measure."""

    name: Literal["calibrated"] = setting(
        "calibrated", "decide once a round, by thresholds measured on the collection's own views"
    )
    variant: Literal["A", "C", "D-anchor", "D"] = setting(
        "D",
        "A nearest; C nearest above a threshold; D-anchor and mutual neighbours; D and shared neighbourhoods",
    )
    neighbours: int = setting(3, "N_b: neighbours of the anchor in a tuple", ge=1)
    pool: int | Auto = setting("auto", "P: size of the candidate pool")

    @property
    def pool_fits(self) -> bool:
        """Whether the neighbours of a tuple leave candidates in the pool."""
        return self.pool == "auto" or self.pool > self.neighbours

    @property
    def votes(self) -> bool:
        """Whether decisions are made on the mean of all views of an image; A takes its plain view."""
        return self.variant != "A"


MethodSettings = Annotated[
    InsclrSettings
    | CalibratedSettings
    | SimclrSettings
    | MocoSettings
    | ByolSettings
    | SwavSettings
    | DeepClusterSettings
    | PclSettings
    | ClusterContrastSettings
    | ScanNnSettings
    | ManifoldMiningSettings
    | ArcfaceSettings
    | GemApSettings
    | OracleSettings,
    Field(discriminator="name"),
]
METHODS: dict[str, type[MethodTable]] = {
    kind.model_fields["name"].default: kind for kind in get_args(get_args(MethodSettings)[0])
}

"""The protocol of a method: the batch it is given, the labels of pairs it gives, and what it may know of a round."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from insclr.data.tuples import FeedbackGroups, Sampler
from insclr.mining.candidates import Consistency, PairTrust
from insclr.mining.expand import compact
from insclr.mining.overlap import UNKNOWN, InstanceSize
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks
from insclr.recipe import MethodSettings


@dataclass(frozen=True)
class Batch:
    """The descriptors of T training tuples of M images each; slot 0 is the anchor."""

    ids: Tensor  # (T, M) int64
    views: Tensor  # (V, T, M, D) of augmented views, with gradient
    plain: Tensor | None = None  # (T, M, D) of the plain view, no gradient; where the method needs it
    scales: tuple[Tensor, ...] = ()  # (T, M, D) each, of plain views at the scales that the method asked for
    replaced: Tensor | None = None  # (T, M) bool: another image stands in for one that could not be read
    whole: "Batch | None" = None  # the tuples of all ranks, where these are one rank's
    first_tuple: int = 0  # where these begin in the whole
    teacher: Tensor | None = (
        None  # (V, T, M, D) of the same views by the EMA teacher; where the method needs it
    )

    @property
    def augmented(self) -> Tensor:
        """The first augmented view, (T, M, D): the only one for methods that ask for one."""
        return self.views[0]

    @property
    def global_batch(self) -> "Batch":
        """The whole batch: what enters the banks and stands in the loss."""
        return self if self.whole is None else self.whole

    @property
    def unreliable(self) -> Tensor | None:
        """Members (T, N_b) that are stand-ins, or neighbours of a stand-in anchor: they prove nothing."""
        return None if self.replaced is None else self.replaced[:, 1:] | self.replaced[:, :1]


@dataclass(frozen=True)
class BankPairs:
    """Bank rows that stand in the loss as constants, with their labels; the same for every query of a tuple."""

    rows: Tensor  # (T, P, D), or (R, D) where all tuples share them
    negative: Tensor  # (T, P) bool
    positive: Tensor | None = None  # (T, P) bool


@dataclass(frozen=True)
class Pairs:
    """For every query image i of each tuple: which j attract it, which repel it; all others count neither way."""

    query: Tensor  # (T, M) bool: i ranges over these slots, the anchor and the selected
    positive: Tensor  # (T, M, B) bool over the images of the whole batch
    negative: Tensor  # (T, M, B) bool
    bank: tuple[BankPairs, ...] = ()
    mined_ids: Tensor | None = None  # (T, P) images mined beyond the tuple, for the log
    mined: Tensor | None = None  # (T, P) bool: which of them are positives


def label_batch(
    tuple_ids: Tensor,
    selected: Tensor,
    *,
    ignored: Tensor | None = None,
    batch_tuple_ids: Tensor | None = None,
    first_tuple: int = 0,
) -> Pairs:
    """Label the pairs of each tuple (T, M) with the batch (B images).

    Positives: the tuple's `selected` slots (T, M), anchor included, with each other. Negatives: the tuple's other
    slots and every image of other tuples, but for copies of its own query set and what is `ignored` (T, B).
    The batch is these tuples, or `batch_tuple_ids` (T_all, M) in which these start at `first_tuple`.
    """
    global_batch = tuple_ids if batch_tuple_ids is None else batch_tuple_ids
    batch_ids = global_batch.reshape(-1)  # (B,)
    own, own_selected = _own_slots(selected, len(global_batch), first_tuple)  # (T, B) both
    negative = torch.where(own, ~own_selected, ~contains(tuple_ids, selected, batch_ids))  # (T, B)
    if ignored is not None:
        negative &= ~ignored
    slots = torch.arange(tuple_ids.numel(), device=tuple_ids.device) + first_tuple * tuple_ids.shape[1]
    is_self = slots.view_as(tuple_ids)[..., None] == torch.arange(len(batch_ids), device=slots.device)
    query = selected[..., None]  # (T, M, 1)
    return Pairs(
        query=selected,
        positive=query & own_selected[:, None] & ~is_self,
        negative=query & negative[:, None],
    )


def contains(ids: Tensor, marked: Tensor, wanted: Tensor) -> Tensor:
    """Which of `wanted` (J,) are among the marked `ids` (T, K) of each tuple: (T, J) bool."""
    columns, real = compact(marked)
    kept = ids.gather(1, columns).masked_fill(~real, -1)  # (T, most marked)
    return (kept[:, :, None] == wanted).any(1)


def _own_slots(selected: Tensor, all_tuples: int, first_tuple: int) -> tuple[Tensor, Tensor]:
    """Which images of the batch (T, B) are the tuple's own, and which of those are in its query set."""
    tuples, slots = selected.shape
    number = torch.arange(tuples, device=selected.device) + first_tuple
    is_own = number[:, None] == torch.arange(all_tuples, device=selected.device)  # (T, T_all)
    own_selected = is_own[..., None] & selected[:, None, :]  # (T, T_all, M)
    return is_own.repeat_interleave(slots, dim=1), own_selected.flatten(1)


MAX_SINGLE_PRECISION_IMAGES = 200_000  # images whose descriptors are kept in single precision
_BLOCK_ROWS = 8192


def precision_of(images: int) -> torch.dtype:
    """How the descriptors of so many images are kept: of millions in half precision."""
    return torch.float32 if images <= MAX_SINGLE_PRECISION_IMAGES else torch.float16


@dataclass(frozen=True)
class Needs:
    """What a method needs of an image."""

    plain: bool = False  # in every step, the descriptor of its plain view: what decisions are made on
    scales: tuple[float, ...] = ()  # and of plain views at these multiples of the plain size
    augmented: int = 1  # in every step, so many augmented views, with gradient
    views: bool = False  # when a round begins, the features of its cached augmented views
    ema_decay: float = 0.0  # an EMA teacher with this decay describes the augmented views too; 0 = none
    labels: bool = False  # the true instances: only for methods that are meant to learn from labels


@dataclass(frozen=True)
class RoundStart:
    """The collection of N images as the network sees it when a round begins."""

    network: DescriptorNetwork
    plain: Tensor  # (N, C) pooled features of the plain views
    views: Tensor  # (V, N, C) and of the cached augmented views
    tuples: int  # in a batch
    seed: int
    folder: Path  # for files that are needed only while the round lasts
    number: int = 1  # of the round, from 1
    size: InstanceSize = UNKNOWN  # of the instances, as estimated at the start of the run
    untrained_fc: bool = False  # the fully connected layer is random: its descriptors mean nothing yet
    ranks: Ranks = field(default_factory=Ranks)
    kept: Path | None = None  # for files that stay as long as the run; None: as long as the round
    instances: Tensor | None = None  # (N,) the true ones, -1 unknown; None unless the method needs labels
    feedback: FeedbackGroups | None = None  # groups of the images that people named
    trust: PairTrust = PairTrust.TRUSTED  # in mined pairs; untested ones are to be tested by the method

    def __len__(self) -> int:
        return len(self.plain)

    @cached_property
    def descriptors(self) -> Tensor:
        """Unit descriptors (N, D) of the plain views; the pooled features where the FC is untrained."""
        if self.untrained_fc:
            normal = self.network.normalise_pooled
            return self.plain if normal else normalize(self.plain.float(), dim=1).to(self.plain.dtype)
        described = torch.empty(len(self), self.network.dim, dtype=precision_of(len(self)))
        for rows in torch.arange(len(self)).split(_BLOCK_ROWS):
            described[rows] = self.network.describe_pooled(self.plain[rows]).to(described.dtype)
        return described

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.network.device


@dataclass(frozen=True)
class Prepared:
    """What a method found when a round began, for the guard, the log and the report."""

    criteria: Mapping[str, Any]  # the numbers in force, by name
    reasons: tuple[str, ...] = ()  # why each measured number is what it is, as "name = value: why"
    candidates: Tensor | None = None  # (N, P) ids, where the round's positives are known beforehand
    positive: Tensor | None = None  # (N, P) bool
    consistency: Consistency | None = None  # of untested pairs
    feedback: int = 0  # positives of all images together that people decided, beside the mined ones

    @property
    def positives_per_image(self) -> float | None:
        """How many positives an image has on average, where that is known beforehand."""
        if self.positive is None:
            return None
        return (float(self.positive.sum()) + self.feedback) / len(self.positive)


@dataclass(frozen=True)
class Explanation:
    """What a method decides for some anchors with what it knows now; P candidates each."""

    ids: Tensor  # (T, M) the anchors and the neighbours in their tuples
    selected: Tensor  # (T, M) bool: the query set
    similarities: Tensor  # (T, M - 1) of the anchor to its neighbours
    candidates: Tensor  # (T, P) ids
    candidate_similarities: Tensor  # (T, P) of the anchor to its candidates
    mined: Tensor | None = None  # (T, P) bool
    repeat: Tensor | None = None  # (T, P) which repeat mined it, from 1; 0 where not mined
    score: Tensor | None = None  # (T, P) what decided; -inf where there is no score


@dataclass(frozen=True)
class OwnLoss:
    """The loss of a method that brings its own, with gradient, and numbers for the log, without."""

    loss: Tensor
    numbers: Mapping[str, Tensor] = field(default_factory=dict)


class Method(ABC):
    """Decides which images of a batch show the same instance: labels their pairs, or computes a loss itself."""

    settings_class: ClassVar[type[MethodSettings]]  # by which its table in a recipe is checked
    needs: Needs
    sampler: Sampler  # the tuples of every step; made by `prepare`
    heads: nn.ModuleDict | None = (
        None  # layers that are trained with the network and thrown away; by `prepare`
    )
    epoch_steps: int = 0  # steps after which `begin_epoch` is called, again and again; 0 = never
    explains: bool = False  # `explain` gives something
    learns_from_feedback: bool = False

    @abstractmethod
    def prepare(self, start: RoundStart) -> Prepared:
        """Get ready for a round: neighbours, thresholds, memory. Equal starts give equal methods."""

    def label(self, batch: Batch, step: int, generator: torch.Generator) -> Pairs:
        """Label the pairs of a batch for the round's contrastive loss; all chance comes from `generator`."""
        raise NotImplementedError(f"{type(self).__name__} has neither labels nor a loss")

    def loss(self, batch: Batch, step: int, generator: torch.Generator) -> OwnLoss | None:  # noqa: ARG002
        """The loss of a method that brings its own; None where the round asks for labels instead.

        It is the loss of the whole batch (`batch.global_batch`), computed by every rank: queues, batch-norm in heads
        and even assignments then are what one rank would have.
        """
        return None

    def begin_epoch(self, epoch: int, plain: Tensor, ranks: Ranks) -> Sequence[nn.Parameter]:  # noqa: ARG002
        """See the collection as the network sees it now: pooled features (N, C) of the plain views.

        Called before the first step of epochs 1, 2, ...; `prepare` is the beginning of epoch 0. Gives back the
        parameters that were set anew, whose moments the optimizer must forget.
        """
        return ()

    def parameters(self) -> list[nn.Parameter]:
        """What is trained beside the network."""
        return [] if self.heads is None else [one for one in self.heads.parameters() if one.requires_grad]

    def explain(self, anchors: Tensor) -> Explanation | None:  # noqa: ARG002
        """What is decided for these anchors (T,) with what is known now, by methods that label neighbours."""
        return None

    def descriptors(self, ids: Tensor) -> Tensor | None:  # noqa: ARG002
        """The newest plain descriptors (..., D) of these images, where the method keeps any."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep; `prepare` makes all the rest anew."""
        return {} if self.heads is None else {"heads": self.heads.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], copies: Mapping[str, Path], ranks: Ranks) -> None:  # noqa: ARG002
        """Go on from a checkpoint and its `copies` of `files`, on the `ranks` that train this round."""
        if self.heads is not None:
            self.heads.load_state_dict(state["heads"])

    def files(self) -> Mapping[str, Path]:
        """Memory-mapped files that a checkpoint copies, by name."""
        return {}

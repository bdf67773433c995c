"""The batch that a feature source gives a method in every step."""

from dataclasses import dataclass

from torch import Tensor


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

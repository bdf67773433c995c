"""The state that all rounds of a run share."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from insclr.data.feedback_groups import FeedbackGroups
from insclr.data.images import ImageList
from insclr.methods.method import Needs, RoundStart
from insclr.mining.consistency import PairTrust
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks
from insclr.recipe import Recipe, RoundRecipe
from insclr.run_folder import RunFolder
from insclr.tracking import Tracker
from insclr.training.plan import Plan
from insclr.training.round_features import RoundFeatures


@dataclass(frozen=True)
class Run:
    """A run under way. What changes from round to round is in the network and in the folder."""

    folder: RunFolder
    recipe: Recipe
    network: DescriptorNetwork
    features: RoundFeatures
    images: ImageList  # the readable ones: N
    instances: Tensor | None  # (N,) true instance of each image, -1 unknown; None without labels
    feedback: FeedbackGroups | None  # about the same images
    tracker: Tracker
    plan: Plan
    ranks: Ranks

    def pair_trust(self) -> PairTrust:
        """Whether mined pairs may be learned from."""
        trust: PairTrust = self.ranks.from_first(self.folder.pair_trust())
        return trust if self.recipe.guard else PairTrust.TRUSTED

    def start_round(self, number: int, recipe: RoundRecipe, needs: Needs) -> RoundStart:
        """The collection as the network sees it now."""
        features = self.features.pool_features(self.network, recipe, needs)
        return RoundStart(
            network=self.network,
            plain=features.plain,
            views=features.views,
            tuples=recipe.tuples,
            seed=self.seed(number),
            folder=self.scratch(number),
            size=self.ranks.from_first(self.folder.size()),
            ranks=self.ranks,
            kept=self.folder.path / "kept",
            instances=self.instances if needs.labels else None,
            feedback=self.feedback,
            trust=self.pair_trust(),
        )

    def seed(self, number: int) -> int:
        """The seed of round `number`."""
        return self.recipe.seed * 1009 + number

    def scratch(self, number: int) -> Path:
        """For files that are needed only while round `number` lasts."""
        return self.folder.round_folder(number) / "scratch"

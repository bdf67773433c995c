"""The state that all rounds of a run share, and the features of the collection that each round needs."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from insclr.data.images import ImageList
from insclr.data.loader import Collection, ViewSpec
from insclr.data.tuples import FeedbackGroups
from insclr.describe.collection_features import CollectionFeatures, PooledFeatures
from insclr.errors import UserError
from insclr.files import reserve
from insclr.methods.method import Needs, RoundStart
from insclr.mining.candidates import PairTrust
from insclr.model.network import DescriptorNetwork, LateLayers
from insclr.ranks import Ranks
from insclr.recipe import Recipe, RoundRecipe
from insclr.run_folder import RunFolder
from insclr.tracking import Tracker
from insclr.training.plan import Plan

MAX_IN_MEMORY = 500_000_000  # numbers of pooled features, made of maps, that are held in memory


class RoundFeatures:
    """Gives the features that a round needs, from the cache, from maps, or from the images.

    Rows are those of the `usable` images once they are known, and until then of all that could be read.
    """

    def __init__(
        self, recipe: Recipe, collection: Collection, cache: Path, ranks: Ranks, engine: str = "torch"
    ) -> None:
        """`engine` is the name of the one that describes images on a CPU."""
        self.recipe = recipe
        self.collection = collection
        self.cache = cache
        self.stored = CollectionFeatures(recipe.network, collection, cache, ranks, engine)
        self.usable: Tensor | None = None  # (N,) ids, ascending
        self.early = ""  # the digest of the early layers whose maps later rounds use; empty: of any
        self._latest: tuple[object, PooledFeatures] | None = None

    def expect_maps(self, network: DescriptorNetwork) -> None:
        """Rounds of late layers use maps of the early layers as they are now; UserError where none are known."""
        if not network.backbone.has_late:
            raise UserError(
                f"train = late does not know the late layers of {network.backbone.name}: choose the recipe fast, or "
                "write one that trains all layers (docs/backbones.md)."
            )
        self.early = self.stored.digest(network, early=True)

    def pool_features(self, network: DescriptorNetwork, recipe: RoundRecipe, needs: Needs) -> PooledFeatures:
        """Pooled features of every image: through the late layers where maps are at hand, else from the images."""
        views = recipe.cached_views if recipe.train != "all" or needs.views else 0
        if recipe.train != "late" and not self._maps_come_later(network, recipe):
            return self._read(network, recipe, views, maps=False)
        key = self.stored.digest(network), views, _view_settings(recipe)
        if self._latest is None or self._latest[0] != key:
            maps = self.maps(network, recipe)
            floats = self.floats(network, recipe)
            of_views = LateLayers(network, recipe.augmented_size, floats)
            out = self._allocate(1 + views, len(maps.plain), network.backbone.channels)
            LateLayers(network, recipe.plain_size, floats).all_pooled(maps.plain, out[0])
            for number in range(views):
                of_views.all_pooled(maps.views[number], out[1 + number])
            self._latest = key, PooledFeatures(out[0], out[1:], maps.seen)
        return self._latest[1]

    def floats(self, network: DescriptorNetwork, recipe: RoundRecipe) -> torch.dtype | None:
        """The numbers that the network computes in, the same for all ranks; None is single precision."""
        return self.stored.floats(network, recipe.precision)

    def maps(self, network: DescriptorNetwork, recipe: RoundRecipe) -> PooledFeatures:
        """The maps of every image that enter the late layers, flattened."""
        return self._read(network, recipe, recipe.cached_views, maps=True)

    def at_scale(self, network: DescriptorNetwork, recipe: RoundRecipe, scale: float) -> PooledFeatures:
        """Pooled features, or maps where the late layers learn, of plain views at a multiple of their size."""
        scaled = recipe.with_(plain_size=round(scale * recipe.plain_size))
        return self._read(network, scaled, 0, maps=recipe.train == "late")

    def _read(
        self, network: DescriptorNetwork, recipe: RoundRecipe, views: int, *, maps: bool
    ) -> PooledFeatures:
        found = self.stored.read(network, view_spec(recipe, views), maps=maps, precision=recipe.precision)
        return found if self.usable is None else found.of(self.usable)

    def _maps_come_later(self, network: DescriptorNetwork, recipe: RoundRecipe) -> bool:
        """Whether a round of late layers needs maps of the same views: then one pass over the images serves both."""
        late = [_view_settings(each) for each in self.recipe.rounds if each.train == "late"]
        if recipe.train != "fc" or _view_settings(recipe) not in late or not network.backbone.has_late:
            return False
        return self.early in ("", self.stored.digest(network, early=True))

    def _allocate(self, *shape: int) -> Tensor:
        """Memory for pooled features in half precision; for many of them a mapped file."""
        size = math.prod(shape)
        if size <= MAX_IN_MEMORY:
            return torch.empty(shape, dtype=torch.float16)
        self._latest = None  # its file first
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.cache) as file:  # the mapping keeps it, without a name
            reserve(file.fileno(), size * torch.float16.itemsize)
            return torch.from_file(file.name, shared=True, size=size, dtype=torch.float16).view(shape)


def view_spec(recipe: RoundRecipe, augmented: int, *, plain: bool = True) -> ViewSpec:
    """So many augmented views of every image, and the plain one."""
    sizes = recipe.plain_size, recipe.augmented_size
    return ViewSpec(*sizes, plain, augmented, recipe.crop, recipe.augmentation)


def _view_settings(recipe: RoundRecipe) -> tuple[object, ...]:
    """What the cached views of a round depend on."""
    sizes = recipe.plain_size, recipe.augmented_size, recipe.cached_views
    return *sizes, recipe.crop, recipe.augmentation, recipe.precision


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
    clock: Callable[[], float]  # of the time that rounds take

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
            number=number,
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

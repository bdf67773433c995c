"""The features and maps of the whole collection that rounds need, each computed once."""

import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.engine.choose import open_engine
from insclr.engine.engine import Engine, Head
from insclr.engine.graph import GraphSource, trunk_digest
from insclr.errors import UserError
from insclr.files import reserve
from insclr.methods.method import Needs
from insclr.model.model_file import weights_of
from insclr.model.network import DescriptorNetwork, digest_trunk, digest_weights
from insclr.ranks import Ranks
from insclr.recipe import Recipe, RoundRecipe
from insclr.training.cpu import short_floats
from insclr.training.features import PooledFeatures, pooled_features
from insclr.training.sources.maps import LateLayers

# For fewer views than these an engine does not make up for the export.
_FEW_VIEWS = 600
_IN_MEMORY = 500_000_000  # numbers of pooled features, made of maps, that are held in memory


class RoundFeatures:
    """Gives the features that a round needs, from the cache, from maps, or from the images.

    Rows are those of the `usable` images once they are known, and until then of all that could be read.
    """

    def __init__(
        self,
        recipe: Recipe,
        images: ImageList,
        cache: Path,
        workers: int,
        skipped: Skipped,
        ranks: Ranks,
        engine: str = "torch",
    ) -> None:
        """`engine` is the name of the one that describes images on a CPU."""
        self.recipe = recipe
        self.images = images
        self.cache = cache
        self.workers = workers
        self.skipped = skipped
        self.ranks = ranks
        self.engine = engine
        self.usable: Tensor | None = None  # (N,) ids, ascending
        self.early = ""  # the digest of the early layers while maps of theirs are worth making; empty: of any
        self._latest: tuple[str, PooledFeatures] | None = None

    def pooled(self, network: DescriptorNetwork, recipe: RoundRecipe, needs: Needs) -> PooledFeatures:
        """Pooled features of every image: through the late layers where maps are at hand, else from the images."""
        views = recipe.cached_views if recipe.train != "all" or needs.views else 0
        if recipe.train != "late" and not self._maps_come_later(network, recipe):
            return self._computed(network, recipe, views, maps=False)
        key = f"{digest_trunk(network)} {views} {_view_settings(recipe)}"
        if self._latest is None or self._latest[0] != key:
            maps = self.maps(network, recipe)
            floats = self.floats(network, recipe)
            of_views = LateLayers(network, recipe.augmented_size, floats)
            room = self._room(1 + views, len(maps.plain), network.backbone.channels)
            LateLayers(network, recipe.plain_size, floats).all_pooled(maps.plain, room[0])
            for number in range(views):
                of_views.all_pooled(maps.views[number], room[1 + number])
            self._latest = key, PooledFeatures(room[0], room[1:], maps.seen)
        return self._latest[1]

    def floats(self, network: DescriptorNetwork, recipe: RoundRecipe) -> torch.dtype | None:
        """The numbers that the network computes in, the same for all ranks; None is single precision."""
        floats: torch.dtype | None = self.ranks.from_first(short_floats(recipe.precision, network.device))
        return floats

    def _room(self, *shape: int) -> Tensor:
        """Room for pooled features in half precision; for many of them in a mapped file."""
        size = math.prod(shape)
        if size <= _IN_MEMORY:
            return torch.empty(shape, dtype=torch.float16)
        self._latest = None  # its room first
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.cache) as file:  # the mapping keeps it, without a name
            reserve(file.fileno(), size * torch.float16.itemsize)
            return torch.from_file(file.name, shared=True, size=size, dtype=torch.float16).view(shape)

    def maps(self, network: DescriptorNetwork, recipe: RoundRecipe) -> PooledFeatures:
        """The maps of every image that enter the late layers, flattened."""
        require_late(network)
        return self._computed(network, recipe, recipe.cached_views, maps=True)

    def at_scale(self, network: DescriptorNetwork, recipe: RoundRecipe, scale: float) -> PooledFeatures:
        """Pooled features, or maps where the late layers learn, of plain views at a multiple of their size."""
        scaled = recipe.with_(plain_size=round(scale * recipe.plain_size))
        return self._computed(network, scaled, 0, maps=recipe.train == "late")

    def _maps_come_later(self, network: DescriptorNetwork, recipe: RoundRecipe) -> bool:
        """Whether a round of late layers needs maps of the same views: then one pass over the images serves both."""
        late = [_view_settings(each) for each in self.recipe.rounds if each.train == "late"]
        if recipe.train != "fc" or _view_settings(recipe) not in late or not network.backbone.has_late:
            return False
        return self.early in ("", digest_weights(network.backbone.early_state()))

    def _computed(
        self, network: DescriptorNetwork, recipe: RoundRecipe, views: int, *, maps: bool
    ) -> PooledFeatures:
        found = pooled_features(
            network,
            self.images,
            self.cache,
            plain_size=recipe.plain_size,
            augmented_size=recipe.augmented_size,
            views=views,
            crop=recipe.crop,
            augmentation=recipe.augmentation,
            seed=0,
            workers=self.workers,
            skipped=self.skipped,
            ranks=self.ranks,
            maps=maps,
            engine=self._opened(network, recipe, views, maps),
            floats=self.floats(network, recipe),
        )
        return found if self.usable is None else found.of(self.usable)

    def _opened(
        self, network: DescriptorNetwork, recipe: RoundRecipe, views: int, maps: bool
    ) -> Engine | None:
        """The engine for the network as it is now; None is torch. All ranks take the same."""
        few = self.engine == "auto" and len(self.images) * (1 + views) < _FEW_VIEWS
        wanted = "torch" if few or network.device.type != "cpu" else self.engine
        if wanted == "torch":
            return None
        weights = weights_of(network.state_dict())
        source = GraphSource(trunk_digest(self.recipe.network, weights), lambda: network)
        bf16 = self.floats(network, recipe) == torch.bfloat16

        def opened(name: str) -> Engine:
            return open_engine(
                source,
                Head(),
                size=recipe.plain_size,
                square=recipe.plain_size == recipe.augmented_size or not views,
                wanted=name,
                device="cpu",
                kind="early" if maps else "trunk",
                bf16=bf16,
            )

        engine = opened(wanted) if self.ranks.first else None
        chosen = self.ranks.from_first(engine.name if engine else "")
        engine = engine or opened(chosen)
        return None if chosen == "torch" else engine


def require_late(network: DescriptorNetwork) -> None:
    """Refuse a backbone whose late layers are not known."""
    if not network.backbone.has_late:
        raise UserError(
            f"train = late does not know the late layers of {network.backbone.name}: choose the recipe fast, or "
            "write one that trains all layers (docs/backbones.md)."
        )


def _view_settings(recipe: RoundRecipe) -> tuple[object, ...]:
    """What the cached views of a round depend on."""
    sizes = recipe.plain_size, recipe.augmented_size, recipe.cached_views
    return *sizes, recipe.crop, recipe.augmentation, recipe.precision

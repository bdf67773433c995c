"""A run's view of its images: pooled features and maps of all of them, each computed once."""

import hashlib
from pathlib import Path

from insclr.data.cache import DecodedCache, build_cache
from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.errors import UserError
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks
from insclr.recipe import Recipe, RoundRecipe
from insclr.training.features import PooledFeatures, pooled_features
from insclr.training.sources import LateSource, view_spec

_DECODED_BYTES = 4 << 30  # of decoded photos kept on disk while a run trains on images


class Described:
    """Gives the features that a round needs, from the cache, from maps, or from the images."""

    def __init__(
        self, recipe: Recipe, images: ImageList, cache: Path, workers: int, skipped: Skipped, ranks: Ranks
    ) -> None:
        self.recipe = recipe
        self.images = images
        self.cache = cache
        self.workers = workers
        self.skipped = skipped
        self.ranks = ranks
        self._latest: tuple[str, PooledFeatures] | None = None

    def features(self, network: DescriptorNetwork, recipe: RoundRecipe) -> PooledFeatures:
        """Pooled features of every image: through the late layers where maps are at hand, else from the images."""
        decides = recipe.mining.similarity == "overlap"
        views = recipe.cached_views if recipe.train == "fc" or decides else 0
        if recipe.train != "late" and not self._maps_come_later(network, recipe):
            return self._computed(network, recipe, views, maps=False)
        views = max(1, views)
        key = f"{_digest(network)} {views}"
        if self._latest is None or self._latest[0] != key:
            maps = self.maps(network, recipe)
            source = LateSource(network, maps.plain, maps.views, None, side=recipe.plain_size, seed=0)
            described = PooledFeatures(
                source.all_pooled(maps.plain), source.all_views(maps.views[:views]), maps.seen
            )
            self._latest = key, described
        return self._latest[1]

    def maps(self, network: DescriptorNetwork, recipe: RoundRecipe) -> PooledFeatures:
        """The maps of every image that enter the late layers, flattened."""
        if not network.backbone.has_late:
            raise UserError(
                f"train = late does not know the late layers of {network.backbone.name}: set train = all instead."
            )
        return self._computed(network, recipe, recipe.cached_views, maps=True)

    def decoded(self, images: ImageList, recipe: RoundRecipe) -> DecodedCache | None:
        """Photos decoded once for all epochs: building it costs about one epoch, so it must serve several."""
        if recipe.steps * recipe.tuples * (1 + recipe.neighbours) < 2 * len(images):
            return None
        with self.ranks.in_turn():
            return build_cache(
                images,
                self.cache / "decoded",
                longest=view_spec(recipe).longest,
                max_bytes=_DECODED_BYTES,
                workers=self.workers,
            )

    def _maps_come_later(self, network: DescriptorNetwork, recipe: RoundRecipe) -> bool:
        """Whether a later round needs maps of the same views: then one pass over the images serves both."""
        return recipe.train == "fc" and network.backbone.has_late and any(
            (each.train, each.plain_size, each.augmented_size, each.cached_views)
            == ("late", recipe.plain_size, recipe.augmented_size, recipe.cached_views)
            for each in self.recipe.rounds
        )  # fmt: skip

    def _computed(
        self, network: DescriptorNetwork, recipe: RoundRecipe, views: int, *, maps: bool
    ) -> PooledFeatures:
        return pooled_features(
            network,
            self.images,
            self.cache,
            plain_size=recipe.plain_size,
            augmented_size=recipe.augmented_size,
            views=views,
            seed=0,
            workers=self.workers,
            skipped=self.skipped,
            ranks=self.ranks,
            maps=maps,
        )


def _digest(network: DescriptorNetwork) -> str:
    digest = hashlib.sha256()
    for part in (network.backbone, network.pooling):
        for name, tensor in sorted(part.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

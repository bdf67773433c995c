"""Choose the feature source of a round by the layers it trains."""

from torch import Tensor

from insclr.data.images import ImageList
from insclr.data.loader import Collection
from insclr.methods.method import Method
from insclr.model.late_layers import LateLayers
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.training.round_features import RoundFeatures
from insclr.training.sources import Source
from insclr.training.sources.image_source import ImageSource
from insclr.training.sources.map_source import Maps, MapSource
from insclr.training.sources.pooled_source import PooledSource


def choose_source(
    network: DescriptorNetwork,
    method: Method,
    images: ImageList,
    recipe: RoundRecipe,
    features: RoundFeatures,
    *,
    seed: int,
    ranks: Ranks,
) -> Source:
    """Images through all layers, cached maps through the late ones, or cached pooled features through the FC."""
    needs = method.needs
    if recipe.train == "all":
        collection = Collection(images, features.collection.workers, features.collection.skipped)
        return ImageSource(network, method, collection, recipe, seed=seed, ranks=ranks)
    scales = [features.at_scale(network, recipe, scale).plain for scale in needs.scales]
    if recipe.train == "fc":
        pooled = features.pool_features(network, recipe, needs)
        return PooledSource(network, method, pooled.plain, pooled.views, tuple(scales), seed=seed)

    def with_layers(maps: Tensor, side: int) -> Maps:
        return Maps(LateLayers(network, side, features.floats(network, recipe)), maps)

    maps = features.maps(network, recipe)
    return MapSource(
        method,
        with_layers(maps.plain, recipe.plain_size),
        with_layers(maps.views, recipe.augmented_size),
        [
            with_layers(maps_at_scale, round(scale * recipe.plain_size))
            for scale, maps_at_scale in zip(needs.scales, scales, strict=True)
        ],
        seed=seed,
        ranks=ranks,
    )

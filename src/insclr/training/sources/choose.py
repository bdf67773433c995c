"""The feature source of a round: by the layers it trains."""

from insclr.data.images import ImageList
from insclr.data.skipped import Skipped
from insclr.methods.method import Method
from insclr.model.network import DescriptorNetwork
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.training.round_features import RoundFeatures
from insclr.training.sources import Source
from insclr.training.sources.images import ImageSource
from insclr.training.sources.maps import MapSource
from insclr.training.sources.pooled import PooledSource


def choose_source(
    network: DescriptorNetwork,
    method: Method,
    images: ImageList,
    recipe: RoundRecipe,
    features: RoundFeatures,
    *,
    seed: int,
    workers: int,
    skipped: Skipped,
    ranks: Ranks,
) -> Source:
    """Images through all layers, cached maps through the late ones, or cached pooled features through the FC."""
    needs = method.needs
    if recipe.train == "all":
        return ImageSource(
            network,
            method,
            images,
            recipe,
            seed=seed,
            workers=workers,
            skipped=skipped,
            ranks=ranks,
        )
    scales = [features.at_scale(network, recipe, scale).plain for scale in needs.scales]
    if recipe.train == "fc":
        pooled = features.pooled(network, recipe, needs)
        return PooledSource(network, method, pooled.plain, pooled.views, tuple(scales), seed=seed)
    maps = features.maps(network, recipe)
    sides = [round(scale * recipe.plain_size) for scale in needs.scales]
    return MapSource(
        network,
        method,
        maps.plain,
        maps.views,
        tuple(zip(sides, scales, strict=True)),
        plain_size=recipe.plain_size,
        augmented_size=recipe.augmented_size,
        seed=seed,
        ranks=ranks,
        floats=features.floats(network, recipe),
    )

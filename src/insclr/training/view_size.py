"""Choose the side of a run's views: by the pixels of the photos, and by a sample described at several sizes."""

import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch.nn import functional

from insclr.data.check import usual_side
from insclr.data.images import ImageList, Skipped
from insclr.data.loader import Collection
from insclr.data.workers import default_workers
from insclr.describe.collection_features import CollectionFeatures, PooledFeatures
from insclr.errors import UserError
from insclr.model.backbones import create_backbone
from insclr.model.network import create_network
from insclr.neighbours.exact import nearest
from insclr.progress import working
from insclr.ranks import Ranks
from insclr.recipe import NetworkRecipe, Recipe
from insclr.recipe.backbone_names import EMBEDDED
from insclr.training.state import view_spec

_SIZES = (160, 224, 320, 448)
_OF_TRANSFORMERS = 224  # what most are trained at; larger views were measured with ConvNets only
_FEW = 100  # photos, below which neighbourhoods show little: the photos' pixels decide
_USUAL = 320  # largest size that is taken without a sample
_SAMPLE = 250
_NEIGHBOURS = 10


def fit_size(
    recipe: Recipe, images: ImageList, engine: str = "auto", device: torch.device | str = "cpu"
) -> tuple[Recipe, str]:
    """The recipe with all views at the size that suits the photos, and why; a size set by hand stays.

    The size is the one at which an augmented view keeps most of the nearest photos of its photo: this orders sizes
    as mAP does (docs/research/sizes.md). Sizes are left out if describing all photos takes longer than the minutes.
    """
    if not recipe.large_size:
        return recipe, ""
    sizes = _sizes_of(recipe.network)
    if len(sizes) == 1:
        return recipe.at_size(sizes[0]), f"views of {sizes[0]} px, the only size that the network takes"
    # Views larger than the photos lose mAP, which the share does not show.
    largest = min(recipe.large_size, usual_side(images))
    fitting = [size for size in sizes if size <= largest] or [sizes[0]]
    if len(images) >= _FEW and len(fitting) > 1 and sizes == _SIZES:
        shares: dict[int, float] = {}
        # Where no photo of the sample can be read, the run reports it.
        with working("choosing the size of views"), suppress(UserError):
            _try_sizes(recipe, images, fitting, shares, engine, device)
        if shares:
            best = max(shares, key=lambda size: shares[size])
            listed = ", ".join(f"{shares[size]:.1%} at {size} px" for size in sorted(shares))
            why = f"views of {best} px, where they keep most neighbours of their photo ({listed})"
            return recipe.at_size(best), why
    best = max(size for size in fitting if size <= _USUAL)
    return recipe.at_size(best), f"views of {best} px, by the pixels of the photos"


def _sizes_of(network: NetworkRecipe) -> tuple[int, ...]:
    """The sizes that suit a network, whatever the photos; its own alone where it takes no other."""
    if network.backbone == EMBEDDED:
        return _SIZES
    with torch.device("meta"), torch.no_grad():  # the shapes without the numbers
        backbone = create_backbone(network.backbone, pretrained=False)
        try:
            backbone(torch.zeros(1, 3, _SIZES[0], _SIZES[0]))
        except UserError:
            return (backbone.own_side,)
    patches = hasattr(backbone.trunk, "patch_embed")
    return tuple(size for size in _SIZES if size <= _OF_TRANSFORMERS or not patches)


def _try_sizes(
    recipe: Recipe,
    images: ImageList,
    fitting: list[int],
    shares: dict[int, float],
    engine: str,
    device: torch.device | str,
) -> None:
    """Note the share of neighbours that views keep: from the second size up until it falls, else at the first."""
    sample = images.subset(sorted({number * len(images) // _SAMPLE for number in range(_SAMPLE)}))
    network, first = create_network(recipe.network).to(device), recipe.rounds[0]
    workers = recipe.workers if recipe.workers >= 0 else default_workers()
    collection = Collection(sample, workers, Skipped())
    with tempfile.TemporaryDirectory() as scratch:
        features = CollectionFeatures(recipe.network, collection, Path(scratch), Ranks(), engine)

        def share_at(size: int) -> float:
            views = view_spec(first.with_(plain_size=size, augmented_size=size), 1)
            return share_kept(features.read(network, views, precision=first.precision))

        for size in fitting[1:]:
            began = time.monotonic()
            share = share_at(size)
            all_views = len(images) * (1 + first.cached_views)
            seconds = (time.monotonic() - began) * all_views / (2 * len(sample))
            if recipe.minutes and seconds > 60 * recipe.minutes:
                break
            shares[size] = share
            if share < max(shares.values()):
                break
        if max(shares, key=lambda size: shares[size], default=fitting[1]) == fitting[1]:
            shares[fitting[0]] = share_at(fitting[0])


def share_kept(found: PooledFeatures, neighbours: int = _NEIGHBOURS) -> float:
    """Mean share of a photo's nearest other photos that are among the nearest of its augmented view too."""
    plain, view = (functional.normalize(rows.float(), dim=1) for rows in (found.plain, found.views[0]))
    if len(plain) <= neighbours:
        return 0.0
    own = torch.arange(len(plain))
    of_photo, of_view = (nearest(rows, plain, neighbours, own=own)[1] for rows in (plain, view))
    return float((of_photo[:, :, None] == of_view[:, None, :]).any(2).float().mean())

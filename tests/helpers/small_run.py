"""A rival's recipe made small: a few steps on a drawn collection of 48 images."""

SMALL = (
    "workers=0",
    "checkpoint_every=3",
    "network.dim=32",
    "descriptor.size=64",
    "rounds.augmented_size=48",
    "rounds.plain_size=48",
    "rounds.cached_views=2",
    "rounds.epochs=0",
    "rounds.tuples=8",
)
# What a collection of 48 images, 4 of each instance, needs.
OF_METHOD: dict[str, tuple[str, ...]] = {
    "simclr": ("hidden=16", "projected=8"),
    "moco-v2": ("hidden=16", "projected=8", "queue=16"),
    "byol": ("hidden=16", "projected=8"),
    "swav": ("hidden=16", "projected=8", "queue=16", "images_per_prototype=4.0"),
    "deepcluster": ("images_per_cluster=4.0",),
    "pcl": ("hidden=16", "projected=8", "queue=16", "images_per_cluster=[8.0, 4.0]", "warmup_epochs=0"),
    "cluster-contrast": ("k1=6", "k2=2", "min_images=2", "images_per_tuple=2"),
    "scan-nn": ("nearest=3",),
    "manifold-mining": ("nearest=4",),
    "arcface": ("images_per_tuple=2",),
    "gem-ap": ("images_per_tuple=2",),
    "oracle": (),
}


def small(name: str, *more: str) -> tuple[str, ...]:
    """Changes that make the recipe of this name small."""
    return (*SMALL, *(f"rounds.method.{change}" for change in OF_METHOD[name]), *more)

"""All settings of a run. The defaults are the paper's numbers."""

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from insclr.recipe.backbone_names import full_name
from insclr.recipe.tables import (
    Auto,
    MethodSettings,
    StoredMethodSettings,
    Table,
    find_entry_points,
    load_method,
    method_names,
    setting,
)

WITHOUT_METHODS = "without methods"  # validation context: methods are neither loaded nor checked
# Stored recipes of earlier versions have the old names; in a user's recipe they are an error.
RENAMED_NETWORK_KEYS = {
    "start": "initial_fc",
    "start_power": "initial_fc_power",
    "keep_start": "initial_fc_weight",
    "renew_start": "renew_initial_fc",
}


# Pooling by the first words of a timm name. GeM is for maps that end with an activation, most of them ConvNets; the
# features of all other families are signed: they are averaged, where there is no class token.
_FAMILY_POOLING = {
    "spoc": r"vit_.*(siglip|_gap_)",
    "cls": r"vit_|deit|beit|cait|eva|xcit",
    "gem": r".*res2?ne[xs]?t|(tf_)?(efficient|mix|mobile|s?e?mnas|ghost|rex|reg|hg|fb|spnas|tiny)net"
    r"|densenet|vgg|inception_v|xception|mobileone|dla|dpn|hrnet|cspdarknet|darknet|selecsls",
}


class NetworkRecipe(Table):
    """The descriptor network."""

    backbone: str = setting("efficientnet_lite0", "a short name of `insclr backbones`, or a timm model name")
    weights: str = setting("", "a file with the backbone's weights; empty = embedded, or timm's hub")
    pooling: Literal["gem", "mac", "spoc", "cls"] = setting(
        "gem",
        "feature map to vector; if not given: cls for transformers, spoc for other signed maps, else gem",
    )
    gem_p: float = setting(3.0, "GeM's exponent", gt=0)
    normalise_pooled: bool = setting(
        True, "L2-normalise the pooled features before the fully connected layer"
    )
    dim: int = setting(
        512,
        "length of the descriptor (C_e), at most that of the pooled features; 0 = these, no fully connected layer",
        ge=0,
        le=16_384,
    )
    bias: bool = setting(
        False, "the fully connected layer (FC) has a bias; needed unless initial_fc is random"
    )
    initial_fc: Literal["random", "pca", "views"] = setting(
        "random", "initial FC: random; pca; views = a whitening of what views and mined pairs change"
    )
    initial_fc_power: float = setting(
        0.25, "initial_fc pca: 0 = centred rotation, 0.5 = full whitening", ge=0, le=1
    )
    initial_fc_weight: float = setting(
        0.0, "weight of the initial FC in the final average with the trained FC", ge=0, le=1
    )
    renew_initial_fc: bool = setting(
        False,
        "compute the initial FC again after each round that trains other layers",
    )

    @model_validator(mode="before")
    @classmethod
    def _choose_pooling(cls, values: Any) -> Any:
        """GeM would set the negative half of signed features to zero: its mAP is 30 below that of a class token."""
        if not isinstance(values, dict) or "backbone" not in values:
            return values
        values = {**values, "backbone": full_name(str(values["backbone"]))}
        if "pooling" in values:
            return values
        name = str(values["backbone"])
        for pooling, family in _FAMILY_POOLING.items():
            if re.match(family, name):
                return {**values, "pooling": pooling}
        return {**values, "pooling": "spoc"}

    @model_validator(mode="after")
    def _check_initial_fc(self) -> "NetworkRecipe":
        if self.initial_fc == "random" and self.initial_fc_weight:
            raise ValueError('initial_fc_weight must be 0 with initial_fc = "random"')
        if self.renew_initial_fc and self.initial_fc != "views":
            raise ValueError('renew_initial_fc needs initial_fc = "views"')
        if self.initial_fc != "random" and not self.bias:
            raise ValueError(
                f'bias must be true with initial_fc = "{self.initial_fc}": it holds the centring'
            )
        return self

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads beside the others."""
        why = {}
        if self.initial_fc != "pca":
            why["initial_fc_power"] = f'initial_fc = "{self.initial_fc}"'
        if self.pooling != "gem":
            why["gem_p"] = f'pooling = "{self.pooling}"'
        return why


class DescriptorRecipe(Table):
    """How descriptors are extracted; a trained model remembers it."""

    size: int = setting(1024, "side of the image fed to the network, in pixels", ge=16, le=4096)
    fit: Literal["longest", "square", "thumbnail"] = setting(
        "longest",
        "scale the longest side; squash to a square; thumbnail = longest by Lanczos, never enlarged",
    )
    scales: tuple[Annotated[float, Field(gt=0)], ...] = setting(
        (2**0.5, 1.0, 2**-0.5), "multiples of size; unit descriptors are averaged", min_length=1
    )
    zoom: float = setting(
        0.0, "a second, mirrored view of this share of each side, about the centre; 0 = none", ge=0, le=1
    )


class LossRecipe(Table):
    """The loss over the pairs that a method labels."""

    form: Literal["contrastive", "softmax"] = setting(
        "contrastive",
        "negatives above a margin against positives (paper); each positive against all negatives",
    )
    margin: float | Auto = setting(0.4, "a negative counts only while its cosine is above this")
    normalise: Literal["sum", "mean", "mined"] = setting(
        "sum",
        "per query image: sum (paper); mean of positives and of negatives; sum, N_p after memory mining",
    )
    temperature: float = setting(0.2, "cosines are divided by it before the softmax", gt=0)

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads beside the others."""
        why = f'form = "{self.form}"'
        return dict.fromkeys(("temperature",) if self.form == "contrastive" else ("margin", "normalise"), why)


class RoundRecipe(Table):
    """One round: its candidate pool is built by the network as it stands when the round begins."""

    train: Literal["all", "late", "fc"] = setting(
        "all", "all layers on images; the late layers on cached maps; the fc alone on cached pooled features"
    )
    refine: bool = setting(
        False, "train a square layer on top of the fc as it stands, and fold both into one"
    )
    steps: int = setting(40_000, "iterations; with a time budget, at most so many", ge=1)
    epochs: float = setting(0.0, "at most so many times every image is an anchor; 0 = no limit", ge=0)
    tuples: int = setting(16, "training tuples in a batch: an anchor and the method's neighbours each", ge=1)
    augmented_size: int = setting(224, "side of the augmented view, in pixels", ge=16, le=4096)
    plain_size: int = setting(512, "side of the plain view, in pixels", ge=16, le=4096)
    crop: tuple[float, float] = setting(
        (0.4, 1.0), "augmented view: least and largest share of the image's area"
    )
    augmentation: str = setting(
        "paper",
        "what is done to an augmented view beside crop and flip: nothing (paper), or as published: simclr, moco-v2, "
        "byol, swav, deepcluster",
    )
    cached_views: int = setting(
        3, "augmented views cached per image, where features or maps are cached", ge=1
    )
    lr: float = setting(1e-4, "learning rate of the backbone", gt=0)
    fc_lr: float = setting(0.0, "learning rate of the fully connected layer; 0 = the backbone's", ge=0)
    schedule: Literal["step", "cosine", "constant"] = setting("step", "how the learning rate falls")
    milestones: tuple[int, ...] = setting((), "schedule step: divide by ten at these iterations")
    warmup: int = setting(0, "iterations of linear warm-up", ge=0)
    optimizer: Literal["adam", "sgd", "lars"] = setting(
        "adam", "adam (paper); sgd with momentum 0.9; lars = sgd at a rate of its own for each layer"
    )
    weight_decay: float = setting(1e-4, "of the optimizer", ge=0)
    decay_biases: bool = setting(True, "weight decay acts on biases too")
    clip: float = setting(0.0, "largest norm of the gradient; 0 = off", ge=0)
    batch_norm: Literal["frozen", "live"] = setting("live", "statistics of batch-norm layers")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto",
        "arithmetic of the network; auto = fp32, but bf16 for cached views and late layers on an x86 CPU that has it",
    )
    method: MethodSettings = Field(default={"name": "insclr"}, validate_default=True)
    loss: LossRecipe = Field(default_factory=LossRecipe)

    @field_validator("method", mode="plain")
    @classmethod
    def _check_method(cls, value: Any, info: ValidationInfo) -> MethodSettings:
        """Check the table by the settings class of the method that it names."""
        if isinstance(value, MethodSettings):
            return value
        if info.context == WITHOUT_METHODS or not isinstance(value, dict):
            return StoredMethodSettings.model_validate(value)
        if value.get("name") not in method_names():
            raise ValueError(f"name must be one of {', '.join(method_names())}")
        settings: type[MethodSettings] = load_method(value["name"]).settings_class
        return settings.model_validate_json(json.dumps(value))

    @field_validator("augmentation")
    @classmethod
    def _check_augmentation(cls, value: str, info: ValidationInfo) -> str:
        if value != "paper" and info.context != WITHOUT_METHODS:
            known = find_entry_points("insclr.augmentations")
            if value not in known:
                raise ValueError(f"it must be one of paper, {', '.join(sorted(known))}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "RoundRecipe":
        if not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise ValueError("crop must be two shares of the area, 0 < least <= largest <= 1")
        if self.train != "all" and self.cached_views < self.method.views:
            raise ValueError(
                f"cached_views must be {self.method.views} or more: {self.method.name} compares so many views"
            )
        return self

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads beside the others."""
        why = {}
        if self.schedule != "step":
            why["milestones"] = f'schedule = "{self.schedule}"'
        if self.train == "fc":
            why |= dict.fromkeys(("batch_norm", "fc_lr"), 'train = "fc"')
        if self.train == "all" and self.method.name == "insclr":
            why["cached_views"] = 'train = "all" with method insclr'
        stored = isinstance(self.method, StoredMethodSettings)
        if self.method.own_loss or (stored and "loss" not in self.model_fields_set):
            why["loss"] = f"method {self.method.name}, which has its own loss"
        return why


class Recipe(Table):
    """A whole run."""

    name: str = setting("custom", "what the recipe is called")
    about: str = setting("", "one line for people")
    seed: int = setting(0, "one seed gives one run")
    minutes: float = setting(0.0, "time budget of the rounds that train more than the fc; 0 = none", ge=0)
    guard: bool = setting(False, "watch the run without labels; step back where it gets worse")
    large_size: int = setting(
        0,
        "largest side of views that may be chosen by the photos; 0 = as written, as with a size set by hand",
        ge=0,
    )
    workers: int = setting(-1, "processes that decode images; -1 = by the number of cores", ge=-1)
    checkpoint_every: int = setting(500, "iterations between checkpoints", ge=1)
    keep_checkpoints: int = setting(2, "the last so many checkpoints of a round are kept", ge=1)
    network: NetworkRecipe = Field(default_factory=NetworkRecipe)
    descriptor: DescriptorRecipe = Field(default_factory=DescriptorRecipe)
    rounds: tuple[RoundRecipe, ...] = Field(default_factory=lambda: (RoundRecipe(),), min_length=1)

    @model_validator(mode="after")
    def _has_something_to_train(self) -> "Recipe":
        if self.network.dim == 0 and any(each.train == "fc" for each in self.rounds):
            raise ValueError('network.dim must be positive: a round with train = "fc" has nothing to train')
        if self.network.renew_initial_fc and all(each.train == "fc" for each in self.rounds):
            raise ValueError('network.renew_initial_fc must be false where every round has train = "fc"')
        return self

    def at_size(self, side: int) -> "Recipe":
        """The recipe with every view, in training and of descriptors, of this side."""
        return self.with_(
            large_size=0,
            descriptor=self.descriptor.with_(size=side),
            rounds=tuple(each.with_(plain_size=side, augmented_size=side) for each in self.rounds),
        )

    def unread(self) -> dict[str, str]:
        """Keys that nothing reads beside the others."""
        only_fc = all(each.train == "fc" for each in self.rounds)
        return {"minutes": 'train = "fc" in every round'} if only_fc else {}

    def fingerprint(self) -> str:
        """A short hash of everything that a run reads but the name and its description.

        Computed over the old names of renamed keys: folders of earlier versions are named by it.
        """
        from insclr.recipe.recipe_files import to_toml

        text = to_toml(self.with_(name="", about=""))
        for old, new in RENAMED_NETWORK_KEYS.items():
            text = text.replace(f"\n{new} = ", f"\n{old} = ")
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def nested_tables(table: Table, where: str = "") -> list[tuple[str, Table]]:
    """Every table of a recipe with the key that leads to it, itself first: "rounds.0.method." and so on."""
    found: list[tuple[str, Table]] = [(where, table)]
    for key, value in table:
        parts: list[tuple[str, Any]] = [(f"{where}{key}.", value)]
        if isinstance(value, tuple):
            parts = [(f"{where}{key}.{i}.", one) for i, one in enumerate(value)]
        for name, part in parts:
            if isinstance(part, Table):
                found += nested_tables(part, name)
    return found

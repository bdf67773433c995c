"""Open a model with an engine to describe images, without torch where the engine does not need it."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from insclr.engine.choose import (
    AUTO,
    EngineOptions,
    NetworkSource,
    graph_maker,
    open_engine,
    require_engine,
)
from insclr.engine.engine import Engine, Head
from insclr.model.embedded import embedded_weights
from insclr.model.stored import (
    StoredModel,
    Weights,
    digest,
    find_model_file,
    pretrained_recipe,
    read_model_file,
    trunk_digest,
)
from insclr.recipe import DescriptorRecipe, Recipe
from insclr.recipe.backbone_names import EMBEDDED

if TYPE_CHECKING:
    from insclr.model.model_file import Model
    from insclr.model.network import DescriptorNetwork

Settings = Callable[[DescriptorRecipe], DescriptorRecipe]


@dataclass(frozen=True)
class OpenedModel:
    """An engine with a model's network, the model's recipe, and a name for its exact weights.

    `source` is what `open_model` takes to find it again. `load` gives the model itself, with a network of torch.
    """

    engine: Engine
    recipe: Recipe
    fingerprint: str
    source: str
    trunk: str  # the digest of everything before the last layer
    load: "Callable[[], Model]" = field(repr=False, compare=False)
    notes: Mapping[str, str] = field(default_factory=dict)
    head: Head = field(default_factory=Head, repr=False, compare=False)  # the last layer, for parts of maps

    def __repr__(self) -> str:
        name, size = self.recipe.network.backbone, self.descriptor.size
        return f"Model({self.source or 'in memory'}: {name}, {self.engine.dim} numbers, images at {size} px)"

    @property
    def descriptor(self) -> DescriptorRecipe:
        """How it describes images."""
        return self.recipe.descriptor

    @property
    def network(self) -> "DescriptorNetwork":
        """Its network, by torch."""
        return self.load().network

    def as_model(self) -> "Model":
        """The model by torch, describing images as this one does."""
        return replace(self.load(), recipe=self.recipe)


def open_model(
    name: str | Path,
    options: EngineOptions = AUTO,
    settings: Settings = lambda remembered: remembered,
) -> OpenedModel:
    """The model that a user names (as `resolve_model` takes it), by an engine; `settings` changes its views."""
    require_engine(options.engine, options.device)
    file = find_model_file(name)
    stored = read_model_file(file) if file else _embedded_model(str(name))
    if stored is None:
        from insclr.model.model_file import resolve_model

        return open_in_memory(resolve_model(name), options, settings)

    @functools.cache
    def load() -> "Model":
        from insclr.model.model_file import as_model, resolve_model

        return as_model(stored, file) if file else resolve_model(name)

    recipe = stored.recipe.with_(descriptor=settings(stored.recipe.descriptor))
    source = str(file.absolute() if file else name)
    return _open(_Origin(recipe, stored.fingerprint, source, stored.notes), load, stored.weights, options)


def _embedded_model(name: str) -> StoredModel | None:
    """The embedded network with the weights installed with us, without torch; None for any other."""
    recipe = pretrained_recipe(name)
    if recipe.network.backbone != EMBEDDED or recipe.network.weights:
        return None
    weights = {f"backbone.trunk.{key}": value for key, value in embedded_weights().items()}
    return StoredModel(weights, recipe, digest(weights, {}))


def open_in_memory(
    model: "Model",
    options: EngineOptions = AUTO,
    settings: Settings = lambda remembered: remembered,
) -> OpenedModel:
    """A model that is in memory already, by an engine; on a GPU where its network is on one."""
    from insclr.model.model_file import weights_of

    if options.device == "auto" and model.network.device.type != "cpu":
        options = replace(options, device=str(model.network.device))
    recipe = model.recipe.with_(descriptor=settings(model.recipe.descriptor))
    weights = weights_of(model.network.state_dict())
    origin = _Origin(recipe, model.fingerprint, model.source, model.notes)
    return _open(origin, lambda: model, weights, options)


class _Origin(NamedTuple):
    """Where a model comes from."""

    recipe: Recipe
    fingerprint: str
    source: str
    notes: Mapping[str, str]


def _open(
    origin: _Origin, load: "Callable[[], Model]", weights: Weights, options: EngineOptions
) -> OpenedModel:
    recipe = origin.recipe
    trunk = trunk_digest(recipe.network, weights)
    head = Head(weights.get("fc.weight"), weights.get("fc.bias"))
    graph = graph_maker(recipe.network, lambda: weights)
    source = NetworkSource(trunk, lambda: load().network, head, graph)
    engine = open_engine(source, size=recipe.descriptor.size, options=options)
    return OpenedModel(engine, recipe, origin.fingerprint, origin.source, trunk, load, origin.notes, head)

"""A model ready to describe images by an engine; opened without torch where the engine needs none."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from insclr.engine.cache import EngineCache
from insclr.engine.choose import on_cpu, open_engine, require_engine
from insclr.engine.engine import Engine, Head
from insclr.engine.graph import GraphSource, trunk_digest
from insclr.model.stored import Weights, find_model_file, pretrained_recipe, read_model_file
from insclr.recipe import DescriptorRecipe, Recipe

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
    gem_p: float = 3.0  # of GeM pooling, where the network has it

    @property
    def descriptor(self) -> DescriptorRecipe:
        """How it describes images."""
        return self.recipe.descriptor

    @property
    def network(self) -> "DescriptorNetwork":
        """Its network, by torch."""
        return self.load().network

    def engine_for(self, descriptor: DescriptorRecipe) -> Engine:
        """The engine for images described so: torch where its own takes square images of one size alone."""
        if not self.engine.side or (descriptor.size == self.engine.side and _one_size(descriptor)):
            return self.engine
        return self._any_size

    @functools.cached_property
    def _any_size(self) -> Engine:
        from insclr.engine.torch_engine import TorchEngine

        return TorchEngine(self.network)

    def as_model(self) -> "Model":
        """The model by torch, describing images as this one does."""
        return replace(self.load(), recipe=self.recipe)


def open_model(
    name: str | Path,
    *,
    engine: str = "auto",
    device: str = "auto",
    streams: int = 0,
    expected: int = 0,
    settings: Settings = lambda remembered: remembered,
) -> OpenedModel:
    """The model that a user names (as `resolve_model` takes it), by the engine of this name.

    `settings` changes how images are described. `streams` and `expected` as in `open_engine`.
    """
    require_engine(engine, device)
    file = find_model_file(name)
    if file is None:
        from insclr.model.model_file import resolve_model

        return open_in_memory(
            resolve_model(name),
            engine=engine,
            device=device,
            streams=streams,
            expected=expected,
            settings=settings,
        )
    stored = read_model_file(file)
    recipe = stored.recipe.with_(descriptor=settings(stored.recipe.descriptor))

    @functools.cache
    def load() -> "Model":
        from insclr.model.model_file import as_model

        return as_model(stored, file)

    source = GraphSource(trunk_digest(recipe.network, stored.weights), lambda: load().network)
    head = _head(stored.weights)
    made = _open(source, head, recipe.descriptor, engine, device, streams, expected)
    gem_p = _gem_p(recipe, stored.weights)
    name = str(file.absolute())
    return OpenedModel(made, recipe, stored.fingerprint, name, source.digest, load, stored.notes, head, gem_p)


def open_in_memory(
    model: "Model",
    *,
    engine: str = "auto",
    device: str = "auto",
    streams: int = 0,
    expected: int = 0,
    settings: Settings = lambda remembered: remembered,
) -> OpenedModel:
    """A model that is in memory already, by an engine; on a GPU where its network is on one."""
    from insclr.model.model_file import weights_of

    if device == "auto" and model.network.device.type != "cpu":
        device = str(model.network.device)
    weights = weights_of(model.network.state_dict())
    recipe = model.recipe.with_(descriptor=settings(model.recipe.descriptor))
    source = GraphSource(trunk_digest(recipe.network, weights), lambda: model.network)
    head = _head(weights)
    made = _open(source, head, recipe.descriptor, engine, device, streams, expected)
    if not recipe.network.dim:
        # The next search in a store of this pretrained network finds its graph by the fingerprint, without torch.
        EngineCache().write(_pretrained_key(model.fingerprint), "", b"", {"digest": source.digest})
    return OpenedModel(
        made,
        recipe,
        model.fingerprint,
        model.source,
        source.digest,
        lambda: model,
        model.notes,
        head,
        _gem_p(recipe, weights),
    )


def open_pretrained(
    name: str,
    fingerprint: str,
    *,
    engine: str = "auto",
    device: str = "auto",
    streams: int = 0,
    expected: int = 0,
) -> OpenedModel:
    """The pretrained network `name` with this fingerprint, without torch where it was opened before."""
    require_engine(engine, device)
    kept = EngineCache().read(_pretrained_key(fingerprint))
    if kept is None or engine == "torch" or not on_cpu(device):
        return open_model(name, engine=engine, device=device, streams=streams, expected=expected)
    recipe = pretrained_recipe(name)

    @functools.cache
    def load() -> "Model":
        from insclr.model.model_file import resolve_model

        return resolve_model(name)

    source = GraphSource(kept.about["digest"], lambda: load().network)
    made = _open(source, Head(), recipe.descriptor, engine, device, streams, expected)
    return OpenedModel(made, recipe, fingerprint, name, source.digest, load, gem_p=recipe.network.gem_p)


def _open(
    source: GraphSource,
    head: Head,
    descriptor: DescriptorRecipe,
    engine: str,
    device: str,
    streams: int,
    expected: int,
) -> Engine:
    return open_engine(
        source,
        head,
        size=descriptor.size,
        square=_one_size(descriptor),
        wanted=engine,
        device=device,
        streams=streams,
        expected=expected,
    )


def _one_size(descriptor: DescriptorRecipe) -> bool:
    return descriptor.fit == "square" and descriptor.scales == (1.0,)


def _head(weights: Weights) -> Head:
    return Head(weights.get("fc.weight"), weights.get("fc.bias"))


def _gem_p(recipe: Recipe, weights: Weights) -> float:
    """The power of its generalised mean: learned, or that of the recipe."""
    return float(weights["pooling.p"]) if "pooling.p" in weights else recipe.network.gem_p


def _pretrained_key(fingerprint: str) -> str:
    return f"pretrained-{fingerprint}.json"

"""A model ready to describe images by an engine; opened without torch where the engine needs none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insclr.engine.cache import EngineCache
from insclr.engine.choose import on_cpu, open_engine, require_engine
from insclr.engine.graph import GraphSource, trunk_digest
from insclr.engine.protocol import Engine, Head
from insclr.model.stored import StoredModel, Weights, find_model_file, read_model_file
from insclr.recipe import DescriptorRecipe

if TYPE_CHECKING:
    from insclr.model.model_file import Model
    from insclr.model.network import DescriptorNetwork

Settings = Callable[[DescriptorRecipe], DescriptorRecipe]


@dataclass(frozen=True)
class OpenedModel:
    """An engine with a model's network, how the model describes images, and a name for its exact weights."""

    engine: Engine
    descriptor: DescriptorRecipe
    fingerprint: str


def open_model(
    name: str,
    *,
    engine: str = "auto",
    device: str = "auto",
    streams: int = 0,
    settings: Settings = lambda remembered: remembered,
) -> OpenedModel:
    """The model that a user names (run folder, model file, `pretrained:BACKBONE`), by the engine he names.

    `settings` changes how images are described. `streams` as in `open_engine`.
    """
    require_engine(engine, device)
    file = find_model_file(name)
    if file is None:
        from insclr.model.model_file import resolve_model

        return open_in_memory(
            resolve_model(name), engine=engine, device=device, streams=streams, settings=settings
        )
    stored = read_model_file(file)
    descriptor = settings(stored.recipe.descriptor)
    made = _open(
        GraphSource(trunk_digest(stored.recipe.network, stored.weights), lambda: _network(stored, name)),
        _head(stored.weights),
        descriptor,
        engine,
        device,
        streams,
    )
    return OpenedModel(made, descriptor, stored.fingerprint)


def open_in_memory(
    model: "Model",
    *,
    engine: str = "auto",
    device: str = "auto",
    streams: int = 0,
    settings: Settings = lambda remembered: remembered,
) -> OpenedModel:
    """A model that is in memory already, by an engine; on a GPU where its network is on one."""
    from insclr.model.model_file import weights_of

    if device == "auto" and model.network.device.type != "cpu":
        device = str(model.network.device)
    weights = weights_of(model.network.state_dict())
    descriptor = settings(model.recipe.descriptor)
    source = GraphSource(trunk_digest(model.recipe.network, weights), lambda: model.network)
    made = _open(source, _head(weights), descriptor, engine, device, streams)
    if not model.recipe.network.dim:
        # The next search in a store of this pretrained network finds its graph by the fingerprint, without torch.
        about = {"digest": source.digest}
        content = model.recipe.descriptor.model_dump_json().encode()
        EngineCache().write(_pretrained(model.fingerprint), "", content, about)
    return OpenedModel(made, descriptor, model.fingerprint)


def open_pretrained(
    name: str, fingerprint: str, *, engine: str = "auto", device: str = "auto", streams: int = 0
) -> OpenedModel:
    """The pretrained network `name` with this fingerprint, without torch where it was opened before."""
    require_engine(engine, device)
    kept = EngineCache().read(_pretrained(fingerprint))
    if kept is None or engine == "torch" or not on_cpu(device):
        return open_model(name, engine=engine, device=device, streams=streams)
    descriptor = DescriptorRecipe.model_validate_json(kept.content)

    def network() -> "DescriptorNetwork":
        from insclr.model.model_file import resolve_model

        return resolve_model(name).network

    source = GraphSource(kept.about["digest"], network)
    made = _open(source, Head(), descriptor, engine, device, streams)
    return OpenedModel(made, descriptor, fingerprint)


def _open(
    source: GraphSource, head: Head, descriptor: DescriptorRecipe, engine: str, device: str, streams: int
) -> Engine:
    square = descriptor.fit == "square" and descriptor.scales == (1.0,)
    return open_engine(
        source, head, size=descriptor.size, square=square, wanted=engine, device=device, streams=streams
    )


def _head(weights: Weights) -> Head:
    return Head(weights.get("fc.weight"), weights.get("fc.bias"))


def _network(stored: StoredModel, name: str) -> "DescriptorNetwork":
    from insclr.model.model_file import build_network

    return build_network(stored, name)


def _pretrained(fingerprint: str) -> str:
    return f"pretrained-{fingerprint}.json"

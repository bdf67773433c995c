"""The describer for queries to a store."""

from insclr.describe.describer import ModelDescriber
from insclr.engine.choose import EngineOptions
from insclr.engine.opened import open_model, open_pretrained
from insclr.model.stored import PRETRAINED
from insclr.store import StoreInfo


def describer_of(
    info: StoreInfo,
    model: str = "",
    workers: int = -1,
    device: str = "auto",
    engine: str = "auto",
    streams: int = 1,
    expected: int = 0,
) -> ModelDescriber:
    """The describer for queries to a store: its own model, or `model` where that has moved.

    `streams` queries are described at a time, `expected` in all (0: unknown).
    """
    name, options = model or info.model, EngineOptions(engine, device, streams, expected)
    if name.startswith(PRETRAINED) and name == info.model:
        opened = open_pretrained(name, info.fingerprint, options)
    else:
        opened = open_model(name, options)
    info.refuse_other_model(opened.fingerprint, "searched here")
    return ModelDescriber(name, opened, workers, info.size)

"""Describing images by each inference engine: processor time an image, in batches and one at a time."""

import time

import numpy as np

from insclr.engine.choose import EngineOptions, NetworkSource, open_engine
from insclr.engine.engine import Engine
from insclr.errors import UserError
from insclr.model.model_file import resolve_model, weights_of
from insclr.model.stored import trunk_digest
from table import Row, milliseconds

SIZE, BATCH, TURNS = 160, 8, 5


def measure() -> list[Row]:
    model = resolve_model("pretrained:efficientnet_lite0")
    network = model.network
    source = NetworkSource(
        trunk_digest(model.recipe.network, weights_of(network.state_dict())), lambda: network
    )
    images = np.random.default_rng(0).integers(0, 256, (BATCH, 3, SIZE, SIZE), dtype=np.uint8)
    engines: dict[str, Engine] = {}
    for name in ("torch", "onnx", "openvino"):
        try:
            engines[name] = open_engine(source, size=SIZE, options=EngineOptions(name, "cpu"))
        except UserError as error:
            print(f"{name}: {error}")
    rows = []
    for count in (BATCH, 1):
        times = _in_turns(engines, images[:count])
        rows += [
            Row(
                f"efficientnet_lite0, {SIZE} px, batches of {count}: {name}, an image",
                milliseconds(took),
                f"{milliseconds(times['torch'])} (torch)",
                f"{times['torch'] / took:.1f} x",
            )
            for name, took in times.items()
        ]
    return rows


def _in_turns(engines: dict[str, Engine], images: np.ndarray) -> dict[str, float]:
    """The least processor time an image over some turns, after one that is not counted."""
    best = dict.fromkeys(engines, float("inf"))
    for turn in range(1 + TURNS):
        for name, engine in engines.items():
            began = time.process_time()
            engine.run(images, ("pooled",))
            if turn:
                best[name] = min(best[name], (time.process_time() - began) / len(images))
    return best

"""Changes that make a run of a shipped recipe take seconds on a drawn collection of 48 images."""

from pathlib import Path

import safetensors.torch
import torch

# The recipe fast, interrupted or failing.
SMALL = (
    "workers=0",
    "checkpoint_every=5",
    "keep_checkpoints=2",
    "network.dim=32",
    "descriptor.size=64",
    "rounds.augmented_size=64",
    "rounds.plain_size=64",
    "rounds.cached_views=2",
    "rounds.steps=20",
    "rounds.epochs=0",
    "rounds.tuples=8",
    "rounds.method.neighbours=2",
    "rounds.method.pool=20",
)
# The recipe fast or default: guard and calibrated mining included.
SHIPPED = (
    "workers=0",
    "checkpoint_every=3",
    "network.dim=32",
    "descriptor.size=64",
    "rounds.augmented_size=64",
    "rounds.plain_size=64",
    "rounds.cached_views=2",
    "rounds.steps=6",
    "rounds.epochs=0",
    "rounds.tuples=8",
    "rounds.method.neighbours=2",
    "rounds.method.pool=20",
    "minutes=0",
)
# What `insclr learn` trains.
LEARNED = (
    "workers=0",
    "network.dim=32",
    "descriptor.size=48",
    "rounds.augmented_size=48",
    "rounds.plain_size=48",
    "rounds.cached_views=2",
    "rounds.steps=3",
)


def trained_weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / "model.safetensors")

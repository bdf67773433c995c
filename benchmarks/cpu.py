"""Settings of the network on a CPU, each against the way it is shipped: only what wins is kept."""

import contextlib
import os
import subprocess
import sys

import torch

from insclr.model.device import keep_freed_memory
from insclr.model.network import DescriptorNetwork, create_network
from insclr.recipe import NetworkRecipe
from table import Row, milliseconds
from timing import in_turns

_IMAGES, _SIZE = 32, 160


def measure() -> list[Row]:
    keep_freed_memory()
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (_IMAGES, 3, _SIZE, _SIZE), dtype=torch.uint8)
    shipped = _network()
    planar = _network()
    planar.backbone.prefix_tokens = 1  # as of a transformer, whose images stay planar
    weights_too = _network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    cores = len(os.sched_getaffinity(0))

    def step(network: DescriptorNetwork, bf16: bool = False) -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            network.eval()
            with torch.no_grad():
                network(pixels)
            network.train()
            network.zero_grad(set_to_none=True)
            network(pixels)[:, 0].sum().backward()

    def on_threads(count: int) -> None:
        torch.set_num_threads(count)
        step(shipped)
        torch.set_num_threads(cores)

    rivals = {
        "shipped": lambda: step(shipped),
        "planar (NCHW) images": lambda: step(planar),
        "weights channels-last too": lambda: step(weights_too),
        "bf16 autocast": lambda: step(shipped, bf16=True),
        "one thread": lambda: on_threads(1),
    }
    compiled = _compiled()
    if compiled is not None:
        rivals["torch.compile"] = lambda: step(compiled)
    times = in_turns(rivals, turns=5, warm=2)
    base = times.pop("shipped")
    times["freed memory goes back to the system"] = _child("system") / _child("kept") * base
    title = f"efficientnet_lite0, {_IMAGES} images of {_SIZE} px, shipped against"
    return [
        Row(f"{title} {name}", milliseconds(base), milliseconds(taken), f"{taken / base:.2f} x")
        for name, taken in times.items()
    ]


def _child(memory: str) -> float:
    """Seconds of a step in a process of its own: how it treats freed memory cannot be changed back."""
    done = subprocess.run([sys.executable, __file__, memory], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _alone(memory: str) -> float:
    if memory == "kept":
        keep_freed_memory()
    network = _network()
    pixels = torch.randint(0, 256, (_IMAGES, 3, _SIZE, _SIZE), dtype=torch.uint8)

    def step() -> None:
        network.train()
        network.zero_grad(set_to_none=True)
        network(pixels)[:, 0].sum().backward()

    return in_turns({"step": step}, turns=7, warm=2)["step"]


def _network() -> DescriptorNetwork:
    network = create_network(NetworkRecipe(backbone="efficientnet_lite0"), pretrained=False)
    network.frozen_batch_norm = True
    return network


def _compiled() -> DescriptorNetwork | None:
    """The network compiled, or None where there is no compiler for it."""
    network = _network()
    network.backbone.trunk.forward_features = torch.compile(network.backbone.trunk.forward_features)
    try:
        network.train()
        network(torch.zeros(_IMAGES, 3, _SIZE, _SIZE, dtype=torch.uint8)).sum().backward()
    except (RuntimeError, OSError) as error:  # no compiler, or one that fails
        print(f"torch.compile does not work here: {type(error).__name__}")
        return None
    return network


if __name__ == "__main__":
    print(_alone(sys.argv[1]))

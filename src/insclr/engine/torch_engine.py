"""The engine that runs torch: on a GPU, and for networks that cannot be exported."""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from insclr.data.views import Images, at_scale
from insclr.data.workers import usable_cores
from insclr.engine.engine import EngineName, Features, Output
from insclr.model.device import describing_autocast, describing_batch
from insclr.model.network import DescriptorNetwork


class TorchEngine:
    """A network, on the device where it is."""

    name: EngineName = "torch"

    def __init__(
        self,
        network: DescriptorNetwork,
        streams: int = 0,
        autocast: Callable[[], torch.autocast] | None = None,
    ) -> None:
        """`streams` calls at a time share the cores; 0 is one call with all of them.

        `autocast` makes the context that it computes in; by default it is the one for describing images.
        """
        self.about = f"torch {torch.__version__} on {network.device}"
        self.dim = network.dim
        self.channels = network.backbone.channels
        self.batch = describing_batch(network.device)
        self._network = network
        self._autocast = autocast or partial(describing_autocast, network.device)
        self._turns = threading.BoundedSemaphore(max(1, streams))
        if streams > 1:
            torch.set_num_threads(max(1, usable_cores() // streams))

    @torch.inference_mode()
    def run(
        self, images: Images, wanted: Sequence[Output] = ("descriptor",), scale: float = 1.0
    ) -> list[Features]:
        """The wanted outputs for images (B, 3, H, W) in the range 0..255, all from one pass."""
        network = self._network
        with self._turns, self._autocast():
            network.eval()
            pixels = torch.from_numpy(np.ascontiguousarray(at_scale(images, scale))).to(network.device)
            if "early" in wanted:
                return [_array(network.backbone.early(pixels)) for _ in wanted]
            seen = network.backbone(pixels)
            pooled = network.pool(seen)
            found = {"map": seen.map, "pooled": pooled, "descriptor": network.head(pooled)}
            return [_array(found[name]) for name in wanted]


def _array(values: Tensor) -> Features:
    return np.ascontiguousarray(values.float().cpu().numpy(), dtype=np.float32)

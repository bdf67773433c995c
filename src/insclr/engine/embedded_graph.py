"""The graph of the embedded backbone, EfficientNet-Lite0 (Liu 2020), made of any weights of it without torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from insclr.engine.choose import OPSET, OUTPUTS, Kind
from insclr.model.embedded import EARLY_STAGES, LITE0_STAGES
from insclr.model.stored import Weights
from insclr.recipe import NetworkRecipe

_HALVED = (1, 2, 3, 5)  # stages whose first block halves the map
_EPSILON = 1e-3  # of batch norm
_MEAN, _STD = 127.0, 128.0
_SMALLEST = {"pool": 1e-6, "length": 1e-12}  # as in the network of torch


def embedded_graph(recipe: NetworkRecipe, weights: Weights, kind: Kind) -> tuple[bytes, int]:
    """The graph for images (B, 3, H, W) of any size, and the channels of its last output."""
    graph = _Graph(weights)
    x = graph.add("Div", graph.add("Sub", "images", graph.number(_MEAN)), graph.number(_STD))
    x = graph.convolve(x, "conv_stem", "bn1", stride=2)
    for stage, blocks in enumerate(LITE0_STAGES[: EARLY_STAGES if kind == "early" else None]):
        for block in range(blocks):
            x = _block(graph, x, f"blocks.{stage}.{block}", 2 if stage in _HALVED and not block else 1)
    if kind == "early":
        return graph.finish([x], OUTPUTS[kind]), graph.channels
    x = graph.convolve(x, "conv_head", "bn2")
    return graph.finish([x, _pool(graph, x, recipe)], OUTPUTS[kind]), graph.channels


def _block(graph: "_Graph", x: str, name: str, stride: int) -> str:
    """An inverted residual, or in the first stage a depthwise convolution and a projection."""
    entered, channels = x, graph.channels
    if graph.has(f"{name}.conv_pwl"):
        x = graph.convolve(x, f"{name}.conv_pw", f"{name}.bn1")
        x = graph.convolve(x, f"{name}.conv_dw", f"{name}.bn2", stride=stride)
        x = graph.convolve(x, f"{name}.conv_pwl", f"{name}.bn3", active=False)
    else:
        x = graph.convolve(x, f"{name}.conv_dw", f"{name}.bn1", stride=stride)
        x = graph.convolve(x, f"{name}.conv_pw", f"{name}.bn2", active=False)
    return graph.add("Add", x, entered) if stride == 1 and channels == graph.channels else x


def _pool(graph: "_Graph", maps: str, recipe: NetworkRecipe) -> str:
    """Pooled features (B, C), unit rows unless the recipe sets otherwise."""
    inside: dict[str, Any] = {"axes": [2, 3], "keepdims": 0}
    if recipe.pooling == "mac":
        pooled = graph.add("ReduceMax", maps, **inside)
    elif recipe.pooling == "spoc":
        pooled = graph.add("ReduceMean", maps, **inside)
    else:
        powered = graph.add("Max", maps, graph.number(_SMALLEST["pool"]))
        powered = graph.add("Pow", powered, graph.number(recipe.gem_p))
        pooled = graph.add("Pow", graph.add("ReduceMean", powered, **inside), graph.number(1 / recipe.gem_p))
    if not recipe.normalise_pooled and recipe.dim:
        return pooled
    length = graph.add("ReduceL2", pooled, axes=[1], keepdims=1)
    return graph.add("Div", pooled, graph.add("Max", length, graph.number(_SMALLEST["length"])))


class _Graph:
    """Nodes and constants; `add` gives the name of a node's output."""

    def __init__(self, weights: Weights) -> None:
        self.channels = 3  # of the last convolution
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def has(self, layer: str) -> bool:
        """Whether there is a layer of this name."""
        return f"backbone.trunk.{layer}.weight" in self._weights

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node."""
        name = f"{kind}-{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def number(self, value: float) -> str:
        """Add a constant."""
        return self._constant(np.array(value, np.float32))

    def convolve(self, x: str, layer: str, norm: str, *, stride: int = 1, active: bool = True) -> str:
        """A convolution with its batch norm folded in, and ReLU6 unless it is not `active`."""
        weight = self._of(f"{layer}.weight")
        scale = self._of(f"{norm}.weight") / np.sqrt(self._of(f"{norm}.running_var") + _EPSILON)
        bias = self._of(f"{norm}.bias") - self._of(f"{norm}.running_mean") * scale
        groups = self.channels // weight.shape[1]
        self.channels = len(weight)
        folded = self._constant(weight * scale[:, None, None, None])
        # What TensorFlow names SAME: as many cells as the stride leaves, zeros after the last one first.
        settings: dict[str, Any] = {"auto_pad": "SAME_UPPER", "strides": [stride] * 2, "group": groups}
        found = self.add("Conv", x, folded, self._constant(bias), **settings)
        return self.add("Clip", found, self.number(0.0), self.number(6.0)) if active else found

    def finish(self, outputs: Sequence[str], names: Sequence[str]) -> bytes:
        """The graph as a file."""
        for node, name in zip(outputs, names, strict=True):
            self._nodes.append(helper.make_node("Identity", [node], [name]))
        shapes: dict[str, list[Any]] = {
            "images": ["batch", 3, "height", "width"],
            "pooled": ["batch", self.channels],
        }
        made = [
            helper.make_tensor_value_info(
                name,
                TensorProto.FLOAT,
                shapes.get(name, ["batch", self.channels, f"{name}_height", f"{name}_width"]),
            )
            for name in ("images", *names)
        ]
        graph = helper.make_graph(self._nodes, "efficientnet_lite0", made[:1], made[1:], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 8  # what readers of this opset take
        content: bytes = model.SerializeToString()
        return content

    def _of(self, name: str) -> NDArray[np.float64]:
        return self._weights[f"backbone.trunk.{name}"].astype(np.float64)

    def _constant(self, value: NDArray[np.floating]) -> str:
        name = f"constant-{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

"""Export a torch network to an ONNX graph, and verify it against torch."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from insclr.engine.choose import OPSET, OUTPUTS, CannotExport, Kind
from insclr.engine.engine import Features, unit_rows
from insclr.engine.positions import exportable_positions
from insclr.engine.view_graph import WholeDescriptor
from insclr.errors import UserError
from insclr.model.network import DescriptorNetwork
from insclr.recipe import DescriptorRecipe

TOLERANCE = 1e-5  # of a component of a unit vector
_MAP_TOLERANCE = 1e-4  # of the largest value of a map
# Of a graph that makes views, many times as much: a pixel halfway between two grey levels may become either.
_VIEW_TOLERANCES = 300


def export_trunk(network: DescriptorNetwork, kind: Kind, size: int) -> tuple[bytes, int]:
    """The graph of a part of a network for images of any size, and the channels of its last output.

    It is verified at this size and at an odd one. CannotExport where no graph gives what torch gives.
    """
    return _export(_Part(network, kind), network.backbone.name, OUTPUTS[kind], size, [])


def export_whole(network: DescriptorNetwork, settings: DescriptorRecipe, photos: Tensor) -> bytes:
    """The graph of views, network and mean, the descriptor as third output; also verified on photos (B, 3, H, W)."""
    module, outputs = WholeDescriptor(network, settings), ("map", "pooled", "descriptor")
    return _export(module, network.backbone.name, outputs, settings.size, [photos], _VIEW_TOLERANCES)[0]


def _export(
    module: nn.Module,
    name: str,
    outputs: Sequence[str],
    size: int,
    photos: list[Tensor],
    tolerances: float = 1.0,
) -> tuple[bytes, int]:
    odd = (size * 3 // 4 | 1, size + 9 | 1)
    try:
        content = _trace(module.eval(), outputs, size)
        tests = [drawn_images(size, size, 1), drawn_images(*odd, 2), *photos]
        return content, _verify(module, content, outputs, tests, tolerances)
    except CannotExport as error:
        raise CannotExport(f"{name} cannot be expressed as a graph: {error}") from error


def drawn_images(height: int, width: int, count: int) -> Tensor:
    """Drawn test images (count, 3, height, width): coloured patches with some noise, dark and bright in turn."""
    generator = torch.Generator().manual_seed(height * 10_007 + width * 101 + count)
    patches = torch.rand(count, 3, 6, 6, generator=generator)
    images = nn.functional.interpolate(patches, (height, width), mode="bilinear", align_corners=False)
    images = images + 0.1 * torch.randn(count, 3, height, width, generator=generator)
    light = torch.tensor([1.0, 0.25, 1.8])[torch.arange(count) % 3].view(-1, 1, 1, 1)
    return (images * light).clamp(0, 1).mul(255).round()


class _Part(nn.Module):
    """The early layers of a network, or all before its FC."""

    def __init__(self, network: DescriptorNetwork, kind: Kind) -> None:
        super().__init__()
        self.network, self.kind = network, kind

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if self.kind == "early":
            return (self.network.backbone.early(images),)
        seen = self.network.backbone(images)
        return seen.map, self.network.pool(seen)


def _trace(module: nn.Module, outputs: Sequence[str], size: int) -> bytes:
    """The graph as bytes. By tracing: torch's newer exporter takes minutes where this takes a second."""
    spatial = {"map": {2: "map_height", 3: "map_width"}, "early": {1: "early_1", 2: "early_2", 3: "early_3"}}
    device = next(module.parameters()).device
    images = drawn_images(size, size, 2).to(device)
    made = io.BytesIO()
    try:
        with warnings.catch_warnings(), _no_log(), exportable_positions(), torch.no_grad():
            warnings.simplefilter("ignore")  # what they warn of is verified
            axes = {"images": {0: "batch", 2: "height", 3: "width"}}
            for name, one in zip(outputs, module(images), strict=True):
                axes[name] = {0: "batch"} | {
                    axis: called for axis, called in spatial.get(name, {}).items() if axis < one.dim()
                }
            torch.onnx.export(
                module,
                (images,),
                made,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                input_names=["images"],
                output_names=list(outputs),
                dynamic_axes=axes,
            )
    except Exception as error:  # the exporter raises whatever a layer makes it raise
        raise CannotExport(f"torch cannot export it ({_first_line(error)})") from error
    return made.getvalue()


@contextmanager
def _no_log() -> Iterator[None]:
    """Of a layer that it does not know the exporter prints the whole graph, whatever it is asked."""
    name = "_jit_onnx_log"
    before = getattr(torch._C, name, None)
    setattr(torch._C, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(torch._C, name, before)


def _verify(
    module: nn.Module, content: bytes, outputs: Sequence[str], tests: Sequence[Tensor], tolerances: float
) -> int:
    """The channels of the last output; CannotExport where an output differs from torch's by more than tolerances."""
    device = next(module.parameters()).device
    channels = 0
    try:
        options: Any = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # a graph that fails is an answer here, not an error to print
        session: Any = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        quiet: Any = onnxruntime.RunOptions()
        quiet.log_severity_level = 4
    except Exception as error:  # onnxruntime has a class of errors for each reason
        raise CannotExport(f"ONNX Runtime does not take it ({_first_line(error)})") from error
    for images in tests:
        try:
            with torch.no_grad():
                expected = [one.float().cpu().numpy() for one in module(images.float().to(device))]
        except UserError as error:
            raise CannotExport(str(error)) from error
        try:
            found = session.run(list(outputs), {"images": images.float().numpy()}, quiet)
        except Exception as error:
            raise CannotExport(f"ONNX Runtime cannot run it ({_first_line(error)})") from error
        for name, wanted, got in zip(outputs, expected, found, strict=True):
            if not _difference(name, wanted, got) <= tolerances:
                height, width = images.shape[2:]
                raise CannotExport(f"its {name} is not that of torch at {width} x {height} pixels")
        channels = expected[-1].shape[1]
    return channels


def _difference(name: str, wanted: Features, got: Features) -> float:
    """The largest difference in tolerances."""
    if wanted.shape != got.shape:
        return float("inf")
    if name in ("map", "early"):
        return float(np.abs(wanted - got).max() / (_MAP_TOLERANCE * max(1e-6, float(np.abs(wanted).max()))))
    return float(np.abs(unit_rows(wanted) - unit_rows(got)).max() / TOLERANCE)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__

"""Export a model as an ONNX file for other programs: views and network, verified on photos."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from PIL import Image

from insclr import __version__
from insclr.data.decode import BadImage, decode
from insclr.data.images import ImageList
from insclr.data.views import descriptor_views, fit_image
from insclr.engine.choose import OPSET, CannotExport
from insclr.engine.engine import Features, unit_rows
from insclr.engine.export import drawn_images, export_whole
from insclr.engine.torch_engine import TorchEngine
from insclr.errors import UserError
from insclr.files import whole_file
from insclr.model.model_file import Model
from insclr.recipe import DescriptorRecipe

_PHOTOS = 64  # enough to see how far values reach, and to verify
_AT_ONCE = 8  # photos in one forward pass
_SPREAD = 97  # a prime: photos are taken from all over a list


@dataclass(frozen=True)
class OnnxFile:
    """What was written, and how far its descriptors are from torch's on the photos that it was verified with."""

    file: Path
    size: int
    photos: int
    least_cosine: float

    def __str__(self) -> str:
        seen = f"{self.photos} photos" if self.photos else "drawn test images (no --photos)"
        return (
            f"{self.file}: images of any size, opset {OPSET}; least cosine with torch's "
            f"descriptors on {seen}: {self.least_cosine:.6f}"
        )


def write_onnx(model: Model, out: Path, *, photos: ImageList | None = None) -> OnnxFile:
    """Write the model as one ONNX graph: images (B, 3, H, W) of any size, 0..255, in; map, pooled, descriptor out.

    The graph makes all views of an image itself. Its descriptors of `photos` are compared with torch's before it is
    written; UserError where no graph gives what torch gives.
    """
    if out.suffix.lower() != ".onnx":
        raise UserError(
            f"{out}: an ONNX file ends in .onnx. Name it so, for example {out.with_suffix('.onnx')}."
        )
    settings = model.recipe.descriptor
    longest = round(settings.size / (settings.zoom or 1))  # the second view then has `size` pixels of its own
    pixels = _pixels(photos, longest) if photos is not None else drawn_images(longest, longest, 3).numpy()
    network = model.network.cpu().eval()
    try:
        # Some of them: at a large size all together would take more memory than there is.
        content = export_whole(network, settings, torch.from_numpy(pixels[:_AT_ONCE]))
    except CannotExport as error:
        raise UserError(f"{error}. Describe with torch (--engine torch) instead.") from error
    graph = onnx.load_from_string(content)
    about = {
        "insclr.version": __version__,
        "insclr.model": model.fingerprint,
        "insclr.size": str(settings.size),
        "insclr.fit": settings.fit,
        "insclr.zoom": str(settings.zoom),
        "insclr.scales": ",".join(map(str, settings.scales)),
        "insclr.longest": str(longest),
        "insclr.input": "float32 (batch, 3, height, width), RGB, 0..255, any size; the graph makes its views",
        "insclr.backbone": model.recipe.network.backbone,
    }
    onnx.helper.set_model_props(graph, about)
    expected = np.concatenate([_describe(TorchEngine(network), one, settings) for one in pixels])
    content = graph.SerializeToString()
    cosine = float((expected * _run(content, pixels)).sum(axis=1).min())
    with whole_file(out) as scratch:
        scratch.write_bytes(content)
    return OnnxFile(out, settings.size, len(pixels) if photos is not None else 0, cosine)


def _describe(engine: TorchEngine, pixels: Features, settings: DescriptorRecipe) -> Features:
    """The descriptor (1, dim) of an image (3, H, W), with views made as everywhere else."""
    image = Image.fromarray(pixels.transpose(1, 2, 0).astype(np.uint8))
    views = np.stack(descriptor_views(image, settings.size, settings.fit, zoom=settings.zoom))
    found = np.concatenate([engine.run(views, scale=scale)[0] for scale in settings.scales])
    return unit_rows(found.sum(0, keepdims=True))


def _pixels(photos: ImageList, size: int) -> Features:
    """Some of the photos as squares (B, 3, size, size); UserError when none can be read."""
    order = sorted(range(len(photos)), key=lambda i: (i * _SPREAD % len(photos), i))
    found: list[Any] = []
    for i in order:
        try:
            found.append(fit_image(decode(photos.file(i), size), size, "square"))
        except BadImage:
            continue
        if len(found) == _PHOTOS:
            break
    if not found:
        raise UserError(f"none of the {len(photos)} photos in {photos.root} can be read.")
    return np.stack(found).astype(np.float32)


def _run(content: bytes, pixels: Features) -> Features:
    session: Any = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["descriptor"], {"images": part})[0] for part in _parts(pixels)])


def _parts(pixels: Features) -> list[Features]:
    return np.array_split(pixels, math.ceil(len(pixels) / _AT_ONCE))

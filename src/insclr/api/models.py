"""Functions on models and images: load, check, embed, whiten, export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from insclr.data.given import Images, Picture, as_list, in_memory
from insclr.data.images import ImageList, Skipped
from insclr.data.workers import default_workers
from insclr.describe.describer import Describer
from insclr.describe.pipeline import descriptor_settings
from insclr.engine.choose import EngineOptions, require_engine
from insclr.engine.opened import OpenedModel, open_in_memory, open_model
from insclr.model.stored import find_model_file, with_weights
from insclr.options import DeviceOptions, LoadOptions, SizeOptions, WhitenOptions, show_options
from insclr.recipe import DescriptorRecipe

if TYPE_CHECKING:
    from insclr.data.check import CheckReport
    from insclr.engine.onnx_file import OnnxFile
    from insclr.model.model_file import Model


AnyModel: TypeAlias = "Model | OpenedModel | str | Path"


@dataclass(frozen=True)
class Embedded:
    """Unit vectors (N, D), the path of each, and (path, reason) of the images that could not be read.

    `not_read` counts by kind what else the folder holds, such as videos where their reader is not installed.
    """

    paths: tuple[str, ...]
    vectors: NDArray[np.float32]
    unreadable: tuple[tuple[str, str], ...] = ()
    not_read: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)


@show_options
def load(model: AnyModel, options: LoadOptions = LoadOptions(), **changes: Any) -> OpenedModel:
    """The model of this name, ready to describe images: a run folder, a model file, or pretrained:NAME.

    `weights` is a file for a pretrained network. `size`, `fit` ("longest", "square" or "thumbnail") and `scales`
    change how it describes images; `protocol` names a public benchmark whose published ones are used. `engine` runs
    the network: auto, torch, onnx or openvino; `.network` is torch's.

    >>> model = insclr.load("pretrained:efficientnet_lite0", size=160)
    >>> model.recipe.descriptor.size
    160
    """
    given = options.change(changes)
    require_model(model, given)
    asked = given.protocol or given.size or given.fit or given.scales
    unchanged = not asked and given.device == given.engine == "auto"
    if isinstance(model, OpenedModel) and unchanged:
        return model

    def settings(own: DescriptorRecipe) -> DescriptorRecipe:
        return _describe_as(own, given)

    if isinstance(model, str | Path):
        name = with_weights(model, given.weights)
        return open_model(name, EngineOptions(given.engine, given.device), settings)
    torch_model = model.as_model() if isinstance(model, OpenedModel) else model
    return open_in_memory(torch_model, EngineOptions(given.engine, given.device), settings)


def _describe_as(own: DescriptorRecipe, given: SizeOptions) -> DescriptorRecipe:
    """How images are described: as given, else as the protocol has it published, else as the model remembers."""
    if given.protocol:
        from insclr.evaluation.protocol import find_benchmark

        own = find_benchmark(given.protocol).descriptor
    scales = given.scales if isinstance(given.scales, str) else ",".join(map(str, given.scales))
    return descriptor_settings(own, given.size, given.fit, scales)


def require_model(model: AnyModel, options: DeviceOptions) -> None:
    """Refuse a model, an engine or a device that does not exist, before anything heavy is loaded."""
    require_engine(getattr(options, "engine", "auto"), options.device)
    if isinstance(model, str | Path):
        find_model_file(with_weights(model, getattr(options, "weights", "")))


def check(images: Images, *, workers: int = -1) -> "CheckReport":
    """Read every image: how many can be read, their formats and sizes, exact duplicates, what is not read and why.

    >>> report = insclr.check("PHOTOS")
    >>> report.usable, report.unreadable
    (24, ())
    """
    from insclr.data.check import check_images

    return check_images(as_list(images), default_workers() if workers < 0 else workers)


def embed(
    model: AnyModel,
    images: Images | Picture | Sequence[Picture],
    *,
    device: str = "auto",
    engine: str = "auto",
) -> Embedded:
    """Describe images by unit vectors: their inner product is high where two show the same instance.

    Takes a folder, a list file, one path, several paths, or images in memory (PIL or uint8 arrays). What cannot be
    read has no row: it is listed in `unreadable` with the reason.

    >>> found = insclr.embed("RUN", "PHOTOS")
    >>> found.vectors.shape, len(found.paths), found.unreadable
    ((24, 512), 24, ())
    """
    options = LoadOptions(device=device, engine=engine)
    require_model(model, options)
    pictures = in_memory(images)
    listed = ImageList(Path(), ()) if pictures is not None else as_list(images)  # type: ignore[arg-type]
    loaded = load(model, options)
    describer, skipped = Describer(loaded.source, loaded), Skipped()
    if pictures is not None:
        return Embedded(tuple(str(number) for number in range(len(pictures))), describer.images(pictures))
    vectors = describer.files(listed, skipped).descriptors
    readable = [i for i, path in enumerate(listed.paths) if path not in skipped]
    paths = tuple(listed.paths[i] for i in readable)
    return Embedded(paths, vectors[readable], tuple(skipped), listed.not_read)


@show_options
def whiten(
    model: AnyModel,
    images: Images,
    out: str | Path,
    options: WhitenOptions = WhitenOptions(),
    **changes: Any,
) -> "Model":
    """Learn a whitening on images, fold it into the model's last layer, and write the new model to `out`.

    PCA with `power` (0.5 = full whitening); `dim` 0 keeps as many numbers as it can. The new
    model describes images as this one, or at the `size`, `fit` and `scales` given or of a `protocol`.

    >>> insclr.whiten("pretrained:efficientnet_lite0", "PHOTOS", "white.safetensors", dim=16).network.dim
    16
    """
    given = options.change(changes)
    require_model(model, given)
    listed = as_list(images)

    from insclr.jobs.whiten import whiten_model
    from insclr.model.device import pick_device
    from insclr.model.model_file import load_model

    loaded = _in_torch(model, given.weights)
    settings = _describe_as(loaded.recipe.descriptor, given)
    loaded = replace(loaded, recipe=loaded.recipe.with_(descriptor=settings))
    loaded.network.to(pick_device(given.device))
    whiten_model(loaded, listed, Path(out), dim=given.dim, power=given.power)
    return load_model(out)


def export(
    model: AnyModel,
    out: str | Path,
    *,
    photos: Images | None = None,
    weights: str = "",
) -> "OnnxFile":
    """Write a model as an ONNX file for other programs, verified against torch: images in, unit vectors out.

    It is verified on `photos` where given, else on drawn images.

    >>> insclr.export("RUN", "model.onnx", photos="PHOTOS").least_cosine > 0.99999
    True
    """
    require_model(model, WhitenOptions(weights=weights))
    listed = None if photos is None else as_list(photos)

    from insclr.engine.onnx_file import write_onnx

    return write_onnx(_in_torch(model, weights), Path(out), photos=listed)


def _in_torch(model: AnyModel, weights: str) -> "Model":
    """A model with torch's network."""
    from insclr.model.model_file import resolve_model

    if isinstance(model, str | Path):
        return resolve_model(with_weights(model, weights))
    return model.as_model() if isinstance(model, OpenedModel) else model

"""Learned local features: DISK (Tyszkiewicz 2020), matched by LightGlue (Lindenberger 2023) or by descriptors.

kornia provides the networks. The user provides the weights: nothing is downloaded here.
"""

import contextlib
import io
import json
import re
import threading
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from insclr.data.decode import Box
from insclr.errors import UserError
from insclr.files import content_hash
from insclr.model.weights import misfits, read_weights, require_finite
from insclr.retrieval.local.features import (
    LONGEST,
    MAX_FEATURES,
    LocalFeatures,
    signed_bytes,
    visible_part,
)
from insclr.retrieval.local.geometry import Pairs, distinct, match_features

_LEAST_SIDE = 32  # pixels: DISK halves an image four times, and needs more than one pixel after that
_LEAST_CONTRAST = 8  # levels between the darkest and the brightest pixel: less is a single-coloured image
_DIM = 128
# LightGlue's published files number the attention blocks instead of the layers.
_PUBLISHED_NAME = re.compile(r"^(self_attn|cross_attn)\.(\d+)\.")


class Disk:
    """The DISK extractor; threads can share it."""

    table = "learned"

    def __init__(self, weights: Path, matcher: Path | None) -> None:
        self.fingerprint = content_hash(weights.read_bytes())
        places = {"weights": str(weights.absolute()), "matcher": str(matcher.absolute()) if matcher else ""}
        self.note = json.dumps({"fingerprint": self.fingerprint} | places).encode()
        self._network = _load_weights(_import_kornia().DISK(), weights, "DISK", {})
        self._matcher = _light_glue(matcher) if matcher else None
        self._turn = threading.Lock()

    @torch.inference_mode()
    def extract(self, image: Image.Image, box: Box | None = None) -> LocalFeatures:
        """The strongest points of an image, or of the part of it inside a box."""
        part = visible_part(image.convert("RGB"), box)
        pixels = np.asarray(part.image)
        contrast = np.ptp(pixels, axis=(0, 1)).max()  # of the channel that varies most
        if min(part.image.size) < _LEAST_SIDE or contrast < _LEAST_CONTRAST:
            return part.nothing(learned=True)
        batch = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255  # (1, 3, height, width)
        with self._turn:
            (found,) = self._network(batch, n=MAX_FEATURES, pad_if_not_divisible=True)
        points = part.places(found.keypoints.numpy())
        nothing = np.zeros(len(points), np.float32)
        descriptors = signed_bytes(found.descriptors.numpy())
        return LocalFeatures(part.extent, points, nothing, nothing, descriptors, learned=True)

    def match(self, query: LocalFeatures, found: LocalFeatures) -> Pairs:
        """Pairs by LightGlue where its weights are given, else points that are each other's nearest."""
        if self._matcher is None:
            return match_features(query, found, ratio=1.0)
        if len(query) < 2 or len(found) < 2:
            return np.zeros((0, 2), np.int64)
        with torch.inference_mode(), self._turn:
            answer = self._matcher({"image0": _glue_input(query), "image1": _glue_input(found)})
        return distinct(answer["matches"][0].numpy().astype(np.int64), query, found)


def open_learned(weights: str | Path, matcher: str | Path = "") -> Disk:
    """Open DISK with the weights in a file; UserError when the file does not fit or kornia is missing."""
    _import_kornia()
    files = [Path(one) for one in (weights, matcher) if one]
    for file in files:
        if not file.is_file():
            raise UserError(
                f"There is no file {file}: give one with the weights of kornia's DISK or LightGlue."
            )
    states = tuple((file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _open_disk(files[0], files[1] if len(files) > 1 else None, states)


def reopen_learned(fingerprint: str, weights: str, matcher: str) -> Disk:
    """Open the extractor that a store records; UserError when its file is missing or holds other weights."""
    again = "name the file, or extract the features again, with `insclr index ... --local-features FILE|sift`"
    if not Path(weights).is_file():
        raise UserError(
            f"the local features of this store were made with {weights}, which does not exist: {again}."
        )
    found = open_learned(weights, matcher)
    if found.fingerprint != fingerprint:
        raise UserError(f"{weights} holds other weights than this store's local features: {again}.")
    return found


@lru_cache(maxsize=4)
def _open_disk(weights: Path, matcher: Path | None, states: tuple[object, ...]) -> Disk:
    """Open the files once, until their sizes or times change."""
    del states
    return Disk(weights, matcher)


def _light_glue(file: Path) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):  # LightGlue prints a line when it is loaded
        network = _import_kornia().LightGlue(features=None, input_dim=_DIM)
    derived = {"confidence_thresholds": network.state_dict()["confidence_thresholds"]}
    return _load_weights(network, file, "LightGlue (for DISK)", derived)


def _load_weights(network: Any, file: Path, name: str, derived: dict[str, torch.Tensor]) -> Any:
    """Load the weights in a file into the network; the file may omit the `derived` tensors."""
    given = {_PUBLISHED_NAME.sub(r"transformers.\2.\1.", key): one for key, one in read_weights(file).items()}
    wanted = network.state_dict()
    if what := misfits(derived | given, wanted, wanted):
        raise UserError(f"{file} does not hold the weights of {name}: {what}.")
    require_finite(given, str(file))
    network.load_state_dict(derived | given)
    return network.eval()


def _glue_input(features: LocalFeatures) -> dict[str, torch.Tensor]:
    """The input of LightGlue for one image: points in pixels, unit descriptors, width and height."""
    extent = np.array(features.extent, np.float32)
    points = features.points.clip(0, extent) * LONGEST
    arrays = {
        "keypoints": points,
        "descriptors": features.unit_descriptors(),
        "image_size": extent * LONGEST,
    }
    return {name: torch.from_numpy(np.ascontiguousarray(one))[None] for name, one in arrays.items()}


def _import_kornia() -> Any:
    """The module kornia.feature; when it is missing, a UserError with the command that installs it."""
    try:
        return import_module("kornia.feature")
    except ImportError:
        raise UserError("learned local features need kornia: pip install 'insclr[learned]'") from None

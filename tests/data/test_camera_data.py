"""What a camera writes into a photo becomes columns: read right, and never a reason to fail."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from insclr.data.camera_data import CAMERA_COLUMNS, camera_columns, read_camera_data


def exif_of(*, turned: int = 1, make: str = "Canon", model: str = "Canon EOS R6") -> Image.Exif:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0112] = make, model, turned
    details = exif.get_ifd(0x8769)
    details[0x9003] = "2024:05:01 12:30:05"
    details[0xA434] = "RF24-105mm F4 L\0\0"
    place = exif.get_ifd(0x8825)
    place[1], place[2] = "S", (33.0, 51.0, 24.48)
    place[3], place[4] = "E", (151.0, 12.0, 54.0)
    return exif


def write(file: Path, exif: Image.Exif, size: tuple[int, int] = (60, 40)) -> Path:
    Image.new("RGB", size, "teal").save(file, exif=exif)
    return file


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".avif", ".heic", ".tif"])
def test_time_camera_lens_place_and_orientation_are_read(tmp_path: Path, suffix: str) -> None:
    import pillow_heif

    pillow_heif.register_heif_opener()
    file = tmp_path / f"photo{suffix}"
    if suffix == ".tif":  # without pixels: Pillow writes no EXIF details into a TIFF
        file.write_bytes(exif_of().tobytes().removeprefix(b"Exif\0\0"))
    else:
        write(file, exif_of())
    found = read_camera_data(file)
    upright = {"orientation": "landscape"} if suffix != ".tif" else {}
    assert found == {
        "taken": "2024-05-01 12:30:05",
        "camera": "Canon EOS R6",
        "lens": "RF24-105mm F4 L",
        "latitude": "-33.85680",
        "longitude": "151.21500",
        **upright,
    }
    assert set(found) <= set(CAMERA_COLUMNS)


def test_a_turned_photo_is_upright_and_a_make_stands_before_its_model(tmp_path: Path) -> None:
    found = read_camera_data(write(tmp_path / "a.jpg", exif_of(turned=6, make="Apple", model="iPhone 15")))
    assert found["orientation"] == "portrait"
    assert found["camera"] == "Apple iPhone 15"


def test_a_photo_without_camera_data_has_no_columns(tmp_path: Path) -> None:
    Image.new("RGB", (60, 40)).save(tmp_path / "plain.jpg")
    assert read_camera_data(tmp_path / "plain.jpg") == {}
    assert read_camera_data(tmp_path / "gone.jpg") == {}


def test_senseless_values_are_left_out(tmp_path: Path) -> None:
    exif = exif_of(make="", model="A\x1b[31mB")
    exif.get_ifd(0x8769)[0x9003] = "0000:00:00 00:00:00"
    exif.get_ifd(0x8825)[2] = (97.0, 0.0, 0.0)
    found = read_camera_data(write(tmp_path / "a.jpg", exif))
    assert found["camera"] == "A [31mB"
    assert not {"taken", "latitude", "longitude"} & set(found)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=40))
def test_damaged_data_never_fail(at: int, noise: bytes) -> None:
    written = io.BytesIO()
    Image.new("RGB", (60, 40)).save(written, "JPEG", exif=exif_of())
    content = bytearray(written.getvalue())
    content[at : at + len(noise)] = noise
    assert set(camera_columns(bytes(content))) <= set(CAMERA_COLUMNS)

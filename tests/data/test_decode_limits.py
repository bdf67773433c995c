"""What one file may cost: memory, scans, time."""

import io
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from PIL import Image

from helpers.made_files import jpeg_bytes, photo, png_claiming, repeated_scans
from insclr.data import decode_limits
from insclr.data.decode import BadImage, decode, open_image
from insclr.data.decode_limits import MAX_DECODED_BYTES, DecodingMemory, count_scans, decoding_bytes


def reason(content: bytes) -> str:
    with pytest.raises(BadImage) as caught:
        decode(content)
    return caught.value.reason


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded() -> None:
    assert reason(repeated_scans(photo(640, 480), 3000)).startswith("too many scans")
    assert decode(repeated_scans(photo(64, 48), 20)).size == (64, 48)


def test_many_scans_of_a_large_jpeg_are_too_many() -> None:
    # 90 passes over 64 megapixels: 5.8 of the 4 thousand million pixels that may be passed over.
    header = jpeg_bytes(photo(64, 48), progressive=True)
    at = header.index(b"\xff\xc2") + 5
    large = header[:at] + (8000).to_bytes(2) * 2 + header[at + 4 :]
    last = large[large.rindex(b"\xff\xda") : -2]
    assert reason(large[:-2] + 80 * last + large[-2:]) == "too many scans for a JPEG of 8000 x 8000: 90"


def test_scans_are_counted_as_the_decoder_meets_them() -> None:
    assert count_scans(jpeg_bytes(photo(32, 32))) == (1, 3)
    assert count_scans(jpeg_bytes(photo(32, 32), progressive=True))[0] == 10
    # What looks like a scan inside metadata, or after the end (a phone's moving photo), is none.
    image = jpeg_bytes(photo(32, 32), comment=b"\xff\xda" * 200) + b"\xff\xda" * 200
    assert count_scans(image) == (1, 3)
    assert decode(image).size == (32, 32)


@pytest.mark.parametrize(
    ("depth", "colour", "needed"),
    [
        (8, 6, "1.6 GB"),  # RGBA: 4 bytes a pixel, and 4 for the RGB image made of it
        (16, 0, "1.2 GB"),  # 16-bit grey: 2 + 4
        (8, 4, "1.6 GB"),  # grey with alpha takes as much as RGBA in Pillow
    ],
)
def test_the_budget_is_of_decoded_bytes_and_not_of_pixels(depth: int, colour: int, needed: str) -> None:
    found = reason(png_claiming(14_000, 14_000, depth, colour))
    assert found.startswith("too large: 14000 x 14000")
    assert f"takes {needed} to decode" in found


def test_a_drafted_jpeg_costs_what_it_is_decoded_at() -> None:
    large = jpeg_bytes(photo(16, 16).convert("CMYK"))
    at = large.index(b"\xff\xc0") + 5
    claimed = large[:at] + (14_000).to_bytes(2) * 2 + large[at + 4 :]  # 196 megapixels, baseline
    assert decode(claimed, longest=500).size == (1750, 1750)
    assert "takes 1.6 GB to decode" in reason(claimed)


def test_decoding_stops_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    content = jpeg_bytes(photo(640, 480))
    monkeypatch.setattr(decode_limits, "MAX_SECONDS", -1.0)
    assert reason(content) == "takes longer than -1 s to decode"


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGBA"), ("PNG", "I;16"), ("WEBP", "RGB")])
def test_decoding_takes_no_more_memory_than_it_was_budgeted(tmp_path: Path, kind: str, mode: str) -> None:
    side = 5000
    flat = Image.new("RGBA", (side, side), (9, 9, 9, 99)) if mode == "RGBA" else Image.new(mode, (side, side))
    stream = io.BytesIO()
    flat.save(stream, kind)
    (tmp_path / "image").write_bytes(stream.getvalue())
    measure = """
import resource, sys
from pathlib import Path
from insclr.data.decode import decode, open_image
from insclr.data.decode_limits import decoding_bytes
with open_image(Path(sys.argv[1])) as (image, content):
    cost = decoding_bytes(image, image.size, content)
decode(Path(sys.argv[1]), longest=64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, cost)
"""
    base = "import resource\nfrom insclr.data.decode import load_readers\nload_readers()\n"
    base += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    idle = int(
        subprocess.run([sys.executable, "-c", base], capture_output=True, text=True, check=True).stdout
    )
    made = subprocess.run(
        [sys.executable, "-c", measure, tmp_path / "image"], capture_output=True, text=True, check=True
    )
    peak, budgeted = map(int, made.stdout.split())
    # What conversions hold of a strip at a time: a few times 4 megapixels.
    assert peak - idle < budgeted + 80_000_000


def test_images_that_are_decoded_at_once_need_no_more_than_one_may() -> None:
    memory, half = DecodingMemory(), 500_000_000

    def hold(cost: int) -> None:
        with memory.hold(cost):
            pass

    with ThreadPoolExecutor(3) as threads:
        with memory.hold(half):
            with memory.hold(10_000_000):
                pass  # a small one goes on beside it
            second = threads.submit(hold, half)
            third = threads.submit(hold, 10_000_000)
            assert not wait((second, third), timeout=0.1).done  # no small one overtakes
        assert wait((second, third), timeout=10).not_done == set()


def test_the_largest_image_that_may_be_decoded_waits_for_nobody() -> None:
    with DecodingMemory().hold(MAX_DECODED_BYTES):
        pass


def _with_late_exif(image: Image.Image, orientation: int) -> bytes:
    """A PNG whose EXIF data follow its pixels."""
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    image.save(stream, "PNG")
    content, payload = stream.getvalue(), b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(payload) - 4) + payload + struct.pack(">I", zlib.crc32(payload))
    end = content.rindex(b"IEND") - 4
    return content[:end] + chunk + content[end:]


def test_the_cost_of_a_png_is_known_without_decoding_it(tmp_path: Path) -> None:
    photo(64, 48).save(tmp_path / "a.png")
    with open_image(tmp_path / "a.png") as (image, content):
        assert decoding_bytes(image, image.size, content) == len(content) + 64 * 48 * 4
        assert image.tile  # what is left to decode


def test_exif_data_behind_the_pixels_of_a_png_turn_it_and_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    upright, turned = (_with_late_exif(photo(64, 48), orientation) for orientation in (1, 6))
    assert decode(upright).size == (64, 48)
    assert decode(turned).size == (48, 64)
    monkeypatch.setattr(decode_limits, "MAX_DECODED_BYTES", len(turned) + 64 * 48 * 6)
    assert decode(upright).size == (64, 48)
    assert reason(turned).startswith("too large: 64 x 48")

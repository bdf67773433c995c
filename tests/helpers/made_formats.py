"""Files of the formats that cameras and phones write, made here: HEIC, AVIF, a DNG with its preview, a video."""

import io
import struct
from pathlib import Path

import av
import numpy as np
import pillow_heif
from PIL import Image

pillow_heif.register_heif_opener()

_BYTE, _ASCII, _SHORT, _LONG, _RATIONAL, _SIGNED = 1, 2, 3, 4, 5, 10


def save_as(image: Image.Image, file: Path, orientation: int = 1) -> None:
    """Write the image by its suffix (.heic, .heif or .avif), to be shown turned by an EXIF orientation."""
    image = image.copy()
    image.getexif()[0x0112] = orientation
    kind, options = ("AVIF", {"exif": image.getexif()}) if file.suffix == ".avif" else ("HEIF", {})
    image.save(file, kind, quality=95, **options)


def dng(image: Image.Image, *, preview: bool = True, orientation: int = 1) -> bytes:
    """A RAW photo as a camera writes it: mosaic data of the image in a sub-IFD, a JPEG preview in front."""
    pixels = np.asarray(image.convert("RGB"), dtype=np.uint16) * 257  # (H, W, 3)
    mosaic = pixels[..., 1].copy()  # green everywhere but at the red and blue places of RGGB
    mosaic[::2, ::2], mosaic[1::2, 1::2] = pixels[::2, ::2, 0], pixels[1::2, 1::2, 2]
    height, width = mosaic.shape
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=95)
    jpeg = stream.getvalue()
    data = mosaic.astype("<u2").tobytes()
    raw_tags = {
        254: (_LONG, [0]),
        256: (_LONG, [width]),
        257: (_LONG, [height]),
        258: (_SHORT, [16]),
        259: (_SHORT, [1]),
        262: (_SHORT, [32803]),
        273: (_LONG, ["data"]),
        277: (_SHORT, [1]),
        278: (_LONG, [height]),
        279: (_LONG, [len(data)]),
        33421: (_SHORT, [2, 2]),
        33422: (_BYTE, [0, 1, 1, 2]),
    }
    about = {
        271: (_ASCII, list(b"Drawn\0")),
        272: (_ASCII, list(b"Camera\0")),
        274: (_SHORT, [orientation]),
        50706: (_BYTE, [1, 4, 0, 0]),
        50708: (_ASCII, list(b"Drawn Camera\0")),
        50721: (
            _SIGNED,
            [10000, 10000, 0, 10000, 0, 10000, 0, 10000, 10000, 10000] + [0, 10000] * 3 + [10000, 10000],
        ),
        50728: (_RATIONAL, [1, 1, 1, 1, 1, 1]),
    }
    if not preview:
        return _tiff([(raw_tags | about, data)])
    preview_tags = {
        254: (_LONG, [1]),
        256: (_LONG, [image.width]),
        257: (_LONG, [image.height]),
        258: (_SHORT, [8, 8, 8]),
        259: (_SHORT, [7]),
        262: (_SHORT, [6]),
        273: (_LONG, ["data"]),
        277: (_SHORT, [3]),
        278: (_LONG, [image.height]),
        279: (_LONG, [len(jpeg)]),
        330: (_LONG, ["sub"]),
    }
    return _tiff([(preview_tags | about, jpeg), (raw_tags, data)])  # type: ignore[operator]


def _tiff(parts: list[tuple[dict[int, tuple[int, list[object]]], bytes]]) -> bytes:
    """A little-endian TIFF whose later parts are sub-IFDs of the first; "data" and "sub" become offsets."""
    sizes = {_BYTE: 1, _ASCII: 1, _SHORT: 2, _LONG: 4, _RATIONAL: 4, _SIGNED: 4}
    codes = {_BYTE: "B", _ASCII: "B", _SHORT: "H", _LONG: "I", _RATIONAL: "I", _SIGNED: "i"}
    lengths = [
        2 + 12 * len(tags) + 4 + sum(len(v) * sizes[k] + 1 for k, v in tags.values() if len(v) * sizes[k] > 4)
        for tags, _ in parts
    ]
    starts = [8 + sum(lengths[:k]) for k in range(len(parts))]
    offsets = [8 + sum(lengths) + sum(len(data) for _, data in parts[:k]) for k in range(len(parts))]
    places = {"sub": starts[-1]}
    out = bytearray(b"II*\0" + struct.pack("<I", 8))
    for (tags, _), start, offset, length in zip(parts, starts, offsets, lengths, strict=True):
        entries, extra = bytearray(struct.pack("<H", len(tags))), bytearray()
        for tag, (kind, values) in sorted(tags.items()):
            numbers = [offset if value == "data" else places.get(value, value) for value in values]  # type: ignore[call-overload]
            packed = struct.pack(f"<{len(numbers)}{codes[kind]}", *numbers)
            count = len(numbers) // 2 if kind in (_RATIONAL, _SIGNED) else len(numbers)
            if len(packed) > 4:
                where = start + 2 + 12 * len(tags) + 4 + len(extra)
                extra += packed + b"\0" * (len(packed) % 2)
                packed = struct.pack("<I", where)
            entries += struct.pack("<HHI", tag, kind, count) + packed.ljust(4, b"\0")
        out += (entries + b"\0\0\0\0" + extra).ljust(length, b"\0")
    return bytes(out) + b"".join(data for _, data in parts)


def write_video(file: Path, pictures: list[Image.Image], seconds_each: float = 2.0, rate: int = 5) -> None:
    """A video that shows every picture for some seconds, beginning with a key frame."""
    frames = round(seconds_each * rate)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *pictures[0].size, "yuv420p"
        stream.codec_context.gop_size = frames
        stream.bit_rate = 4_000_000
        for picture in pictures:
            for _ in range(frames):
                for packet in stream.encode(av.VideoFrame.from_image(picture)):
                    container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)

"""Files that mean harm: made by hand, and good ones with bytes changed at random."""

import io
import os
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from helpers.made_files import jpeg_bytes, photo, png_claiming, repeated_scans


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _png(*chunks: tuple[bytes, bytes]) -> bytes:
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def by_hand() -> Iterator[tuple[str, bytes]]:
    """Name and content of every known trick."""
    for side, depth, colour in ((30000, 8, 2), (15800, 8, 6), (15800, 16, 0), (15000, 16, 6), (65535, 1, 0)):
        yield f"claim-{side}-{depth}-{colour}.png", png_claiming(side, side, depth, colour)
    flat = Image.new("RGBA", (6000, 6000), (1, 2, 3, 4))
    yield "flat-rgba.png", _saved(flat, "PNG")
    yield "flat.gif", _saved(Image.new("P", (7000, 7000)), "GIF")
    yield "flat.tif", _saved(Image.new("L", (12000, 12000)), "TIFF", compression="tiff_lzw")
    yield "flat.webp", _saved(Image.new("RGB", (7000, 7000)), "WEBP", lossless=True)
    yield "scans.jpg", repeated_scans(Image.new("RGB", (2000, 2000)), 3000)
    yield "slow.jpg", repeated_scans(Image.new("RGB", (4000, 4000)), 80)
    yield "thumbnail-bomb.jpg", jpeg_bytes(photo(64, 48), comment=b"\xff\xda" * 30000)
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    text = zlib.compress(b"a" * 60_000_000)
    yield (
        "ztxt.png",
        _png((b"IHDR", header), (b"zTXt", b"k\0\0" + text), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")),
    )
    yield (
        "iccp.png",
        _png((b"IHDR", header), (b"iCCP", b"k\0\0" + text), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")),
    )
    yield "many-chunks.png", _png((b"IHDR", header), *[(b"IDAT", b"")] * 50_000, (b"IEND", b""))
    yield "endless.ppm", b"P6 15000 15000 255\n" + b"x" * 1000
    yield (
        "negative.bmp",
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, -9, -9, 1, 24, 0, 0, 0, 0, 0, 0),
    )
    yield "empty.jpg", b""
    yield "zeros.jpg", b"\0" * 100_000
    yield "html.png", b"<html><script>alert(1)</script></html>"
    yield "=HYPERLINK(1).png", b"no image"
    yield "line\nend: forged.png", b"no image"
    yield (
        "pickle.png",
        b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    )
    yield "eps.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9999 9999\n"


def at_the_limits() -> Iterator[tuple[str, bytes]]:
    """One-colour images, small as files, of the most pixels that decoding accepts or a little more."""
    for name, mode, side, kind, options in (
        ("rgb.png", "RGB", 14000, "PNG", {}),
        ("rgba.png", "RGBA", 9900, "PNG", {}),
        ("grey16.png", "I;16", 11500, "PNG", {}),
        ("palette.gif", "P", 14000, "GIF", {}),
        ("grey.tif", "L", 9400, "TIFF", {"compression": "tiff_lzw"}),
        ("cmyk.tif", "CMYK", 8100, "TIFF", {"compression": "tiff_lzw"}),
        ("cmyk.jpg", "CMYK", 9900, "JPEG", {}),
        ("baseline.jpg", "RGB", 14000, "JPEG", {}),
        ("progressive.jpg", "RGB", 8900, "JPEG", {"progressive": True}),
        ("lossless.webp", "RGB", 7000, "WEBP", {"lossless": True}),
        ("black.bmp", "1", 13500, "BMP", {}),
    ):
        yield name, _saved(Image.new(mode, (side, side)), kind, **options)
    turned = Image.Exif()
    turned[0x0112] = 6  # upright only after a copy
    yield "turned.jpg", _saved(Image.new("RGB", (9900, 9900)), "JPEG", exif=turned)


def mutated(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Good files of every format, cut, scrambled or with pieces moved."""
    dice = random.Random(seed)
    good = [
        (kind, _saved(photo(90, 70, seed=i), kind, **options))  # type: ignore[arg-type]
        for i, (kind, options) in enumerate(
            (
                ("JPEG", {"quality": 80}),
                ("JPEG", {"progressive": True}),
                ("PNG", {}),
                ("WEBP", {}),
                ("GIF", {}),
                ("TIFF", {"compression": "tiff_lzw"}),
                ("TIFF", {}),
                ("BMP", {}),
                ("PPM", {}),
                ("AVIF", {}),
            )
        )
    ]
    suffixes = {"JPEG": "jpg", "TIFF": "tif", "AVIF": "jpg"}  # a folder is searched by known suffixes
    for number in range(count):
        kind, content = dice.choice(good)
        broken = bytearray(content)
        way = dice.randrange(5)
        reach = len(broken) if dice.random() < 0.5 else min(len(broken), 300)
        if way == 0:
            del broken[dice.randrange(1, len(broken)) :]
        elif way == 1:
            for _ in range(dice.choice((1, 4, 32))):
                broken[dice.randrange(reach)] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        elif way == 2:
            at, end = sorted(dice.randrange(reach) for _ in range(2))
            broken[at:end] = broken[at:end] * dice.choice((0, 2, 9))
        elif way == 3:
            at = dice.randrange(reach)
            broken[at : at + 4] = dice.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4))
        else:
            at = dice.randrange(reach)
            broken[at:at] = dice.randbytes(dice.choice((1, 16, 4096)))
        yield f"m{number:05d}.{suffixes.get(kind, kind.lower())}", bytes(broken)


def write_collection(folder: Path, count: int) -> int:
    """A folder of hostile files, some special ones and 12 good photos; gives how many files there are."""
    folder.mkdir(parents=True)
    names = [*by_hand(), *mutated(count)]
    for name, content in names:
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.jpg")
    (folder / "endless.jpg").symlink_to("/dev/zero")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "gone.jpg").symlink_to("nowhere.jpg")
    for i in range(12):
        photo(120, 90, seed=100 + i).save(folder / f"good{i}.png")
    return len(names) + 4 + 12

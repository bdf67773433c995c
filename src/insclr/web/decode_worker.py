"""A process that only decodes images from unknown sources: small, limited, and killed when it takes too long.

It receives jobs by a pipe and answers there, each as JSON and bytes: the server never runs its output. It
imports neither torch nor the rest of the server.
"""

import contextlib
import io
import json
import math
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from PIL import Image

from insclr.data.decode import BadImage, decode, load_readers, read_header, read_image_bytes
from insclr.data.decode_limits import require_few_pixels

MEMORY = 2_000_000_000  # bytes of address space
_KEPT_PIXELS = 16_000_000  # larger images are reduced, but to no less than twice the size that is described


def main() -> None:
    """Answer jobs until the pipe closes, which it does when the server ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    load_readers()  # before the limits on memory and writing
    _limit_itself()
    server = Connection(int(sys.argv[1]))
    server.send_bytes(b"ready")
    with contextlib.suppress(EOFError):
        while True:
            header, content = _answer(json.loads(server.recv_bytes()), server.recv_bytes())
            server.send_bytes(json.dumps(header).encode())
            server.send_bytes(content)


def _limit_itself() -> None:
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ValueError, OSError):
        if sys.platform == "linux":
            raise  # macOS cannot limit address space: there only the check of the header protects
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)  # searches have priority


def _answer(job: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        if job["path"] is not None:
            content = read_image_bytes(Path(job["path"]))
        header = read_header(content)
        require_few_pixels(header.width, header.height, job["max_pixels"])
        if job.get("header"):
            return {"size": (header.width, header.height)}, b""
        if job["jpeg"]:
            return {}, _jpeg(content, job["longest"], job["jpeg"])
        return _pixels(content, job, max(header.width, header.height))
    except BadImage as bad:
        return {"reason": bad.reason}, b""


def _jpeg(content: bytes, side: int, quality: int) -> bytes:
    image = decode(content, longest=side)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    image.save(written, "JPEG", quality=quality, optimize=True)
    return written.getvalue()


def _pixels(content: bytes, job: dict[str, Any], side: int) -> tuple[dict[str, Any], bytes]:
    """The RGB bytes, the size of the whole image, and the factor by which it was reduced.

    `side` is the longer side of the image in the file. It is used for both sides of a part in fractions, because the
    upright image may have them swapped.
    """
    longest, part = job["longest"], job["part"]
    if part:
        width, height, fractions = part
        part = (width * side, height * side) if fractions else (width, height)
    # A part is in pixels of the file, so only a whole image may be decoded smaller.
    image = decode(content, None if part else longest)
    whole = image.size
    if image.width * image.height > _KEPT_PIXELS:
        wanted = max(part or whole)
        factor = max(f for f in (1, 2, 4, 8, 16) if f == 1 or math.floor(wanted / f) >= 2 * longest)
        image = image.reduce(factor) if factor > 1 else image
    else:
        factor = 1
    return {"size": image.size, "whole": whole, "factor": factor}, image.tobytes()


if __name__ == "__main__":
    main()

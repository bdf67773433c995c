"""Read RAW photos and key frames of videos, each as an image."""

import io
import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from insclr.data.decode_limits import BadImage, require_few_pixels
from insclr.data.formats import VIDEOS, frame_name
from insclr.files import open_file

_SMALL = 640  # pixels: a preview whose longest side is below is a thumbnail
_ORIENTATION = 0x0112
_EXIF_OF_FLIP = {3: 3, 5: 8, 6: 6}  # LibRaw's turns in EXIF's numbers


def raw_preview(content: bytes) -> bytes:
    """An ordinary image file (JPEG or PPM) made from the content of a RAW file; BadImage where there is none."""
    try:
        import rawpy
    except ImportError:
        raise BadImage("a RAW photo: pip install 'insclr[raw]'") from None
    try:
        with rawpy.imread(io.BytesIO(content)) as raw:
            require_few_pixels(raw.sizes.raw_width, raw.sizes.raw_height)
            # Half the size is enough for any descriptor, and quick: no colour has to be interpolated.
            quick = {"half_size": True, "use_camera_wb": True, "output_bps": 8}
            return _read_embedded(rawpy, raw) or as_ppm(raw.postprocess(None, **quick))
    except rawpy.LibRawError as error:
        text = error.args[0] if error.args else type(error).__name__
        reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise BadImage(f"corrupt RAW file: {reason}") from error


def _read_embedded(rawpy: Any, raw: Any) -> bytes | None:
    try:
        found = raw.extract_thumb()
    except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
        return None
    if found.format != rawpy.ThumbFormat.JPEG:
        return None
    jpeg = bytes(found.data)
    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
            if max(image.size) < min(_SMALL, max(raw.sizes.width, raw.sizes.height) // 2):
                return None
            turned = _ORIENTATION in image.getexif()
    except (OSError, SyntaxError):
        return None
    orientation = _EXIF_OF_FLIP.get(raw.sizes.flip)
    if turned or orientation is None:
        return jpeg
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    payload = exif.tobytes()
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def as_ppm(pixels: Any) -> bytes:
    """An RGB array (H, W, 3) of bytes as a file that takes no time to write or read."""
    height, width, _ = pixels.shape
    content: bytes = pixels.tobytes()
    return f"P6 {width} {height} 255\n".encode() + content


logger = logging.getLogger(__name__)

MAX_FRAMES = 12  # of one video
_SECONDS_APART = 2.0  # minimum between two frames
_HALF_A_DIGIT = 0.05  # seconds: names have one decimal, so a frame may be this much later than its name


def frame_names(video: Path, path: str) -> list[str]:
    """The names of evenly spaced key frames of the video that is listed as `path`; only `path` if it has none.

    Decoding that path then reports the error.
    """
    try:
        with _open_video(video) as (container, stream):
            times = _key_times(container, stream)
    except (BadImage, OSError) as error:
        logger.debug("%s: %s", video, error)
        return [path]
    return list(dict.fromkeys(frame_name(path, time) for time in times)) or [path]


def video_frame(video: Path, seconds: float | None) -> bytes:
    """The key frame at `seconds` as a PPM file; the middle one for None. Raises BadImage."""
    with _open_video(video) as (container, stream):
        require_few_pixels(stream.codec_context.width, stream.codec_context.height)
        if seconds is None:
            seconds = _duration(container) / 2
        _seek(container, stream, seconds + _HALF_A_DIGIT)
        for frame in container.decode(stream):
            require_few_pixels(frame.width, frame.height)
            image = Image.fromarray(frame.to_ndarray(format="rgb24"))
            # A phone stores the rotation of the image, counterclockwise.
            turned = image.rotate(frame.rotation, expand=True) if frame.rotation else image
            return as_ppm(np.asarray(turned))
    raise BadImage("a video without a picture")


@contextmanager
def _open_video(video: Path) -> Iterator[tuple[Any, Any]]:
    """Open the container and its video stream for decoding by one thread; any error becomes BadImage."""
    try:
        import av
    except ImportError:
        raise BadImage("a video: pip install 'insclr[video]'") from None
    with open_file(video) as file:
        try:
            with av.open(file, format=VIDEOS[video.suffix.lower()]) as container:
                if not container.streams.video:
                    raise BadImage("a video without a picture")
                stream = container.streams.video[0]
                stream.codec_context.thread_count = 1
                stream.codec_context.skip_frame = "NONKEY"
                yield container, stream
        except BadImage:
            raise
        # A broken file makes the demuxer raise many kinds of errors. No broken file may stop a run.
        except Exception as error:
            reason = getattr(error, "strerror", None) or "its container cannot be read"
            raise BadImage(f"corrupt video: {reason}") from error


def _key_times(container: Any, stream: Any) -> list[float]:
    """The times in seconds of the last key frames before evenly spaced moments."""
    duration = _duration(container)
    count = max(1, min(MAX_FRAMES, int(duration / _SECONDS_APART)))
    times: list[float] = []
    for number in range(count):
        _seek(container, stream, duration * (number + 0.5) / count)
        packet = next((one for one in container.demux(stream) if one.pts is not None), None)
        if packet is not None:
            times.append(max(0.0, float(packet.pts * stream.time_base)))
    return sorted(set(times))


def _duration(container: Any) -> float:
    return container.duration / 1_000_000 if container.duration else 0.0


def _seek(container: Any, stream: Any, seconds: float) -> None:
    container.seek(int(seconds / stream.time_base), stream=stream)

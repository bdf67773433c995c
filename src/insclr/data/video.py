"""Read key frames of videos, each as an image."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from insclr.data.decode_limits import BadImage, require_few_pixels
from insclr.data.formats import VIDEOS, frame_name
from insclr.data.raw import as_ppm
from insclr.files import open_file

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

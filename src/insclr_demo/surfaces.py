"""The surfaces things are made of, each painted as the camera sees it: flat panels, round shells, tubes."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from insclr_demo.camera import Camera, Floats, Light
from insclr_demo.pen import Colour, mix

_RING = np.linspace(0, 2 * np.pi, 16, endpoint=False)


class Surface(Protocol):
    """One part of a thing, in the world's coordinates."""

    @property
    def outline(self) -> Floats:
        """Points (n, 3) that span it."""

    def move(self, rotation: Floats, shift: Floats) -> "Surface":
        """The same part turned about the origin, then shifted."""

    def paint(self, canvas: Image.Image, camera: Camera, light: Light) -> None:
        """Paint what the camera sees of it over an RGBA canvas."""


@dataclass(frozen=True)
class Panel:
    """A flat RGBA print; `corners` (4, 3) hold its top left, top right, bottom right and bottom left."""

    corners: Floats
    texture: Image.Image

    @property
    def outline(self) -> Floats:
        """The corners."""
        return self.corners

    @property
    def normal(self) -> Floats:
        """Unit vector out of the printed side."""
        out = np.cross(self.corners[3] - self.corners[0], self.corners[1] - self.corners[0])
        return np.asarray(out / np.linalg.norm(out))

    def move(self, rotation: Floats, shift: Floats) -> "Panel":
        """The panel turned about the origin, then shifted."""
        return Panel(self.corners @ rotation.T + shift, self.texture)

    def paint(self, canvas: Image.Image, camera: Camera, light: Light) -> None:
        """Paint it if its printed side faces the camera."""
        if float(self.normal @ (camera.position - self.corners[0])) <= 0:
            return
        pixels = camera.project(self.corners)
        box = _bounds(pixels, canvas.size)
        if box is None:
            return
        middle = pixels.mean(0)
        # Half a pixel larger all round, so that no gap shows where two faces meet.
        pixels = middle + (pixels - middle) * (1 + 1.2 / np.abs(pixels - middle).max())
        sides = np.linalg.norm(pixels - np.roll(pixels, -1, 0), axis=1)
        texture = _shrunk(self.texture, float(max(sides[0], sides[2])), float(max(sides[1], sides[3])))
        width, height = texture.size
        source = np.array([(0, 0), (width, 0), (width, height), (0, height)], float)
        seen = texture.transform(
            (box[2] - box[0], box[3] - box[1]),
            Image.Transform.PERSPECTIVE,
            homography(pixels - np.array(box[:2]), source),
            Image.Resampling.BILINEAR,
        )
        level = light.on(self.normal)
        table = [min(255, round(value * level)) for value in range(256)] * 3 + list(range(256))
        canvas.alpha_composite(seen.point(table), box[:2])


@dataclass(frozen=True)
class Shell:
    """The outside of a round part: radius `low` at height 0 changing evenly to `high` at `height`.

    The texture (rows, columns, 3) goes once round, its middle at the front (+z before any move).
    """

    height: float
    low: float
    high: float
    texture: NDArray[np.uint8]
    gloss: float = 0.3
    rotation: Floats = field(default_factory=lambda: np.eye(3))
    shift: Floats = field(default_factory=lambda: np.zeros(3))

    @property
    def outline(self) -> Floats:
        """Its two rims."""
        rims = [
            np.stack([r * np.sin(_RING), np.full_like(_RING, y), r * np.cos(_RING)], 1)
            for r, y in ((self.low, 0.0), (self.high, self.height))
        ]
        return np.asarray(np.concatenate(rims) @ self.rotation.T + self.shift)

    def move(self, rotation: Floats, shift: Floats) -> "Shell":
        """The shell turned about the origin, then shifted."""
        turned, place = rotation @ self.rotation, rotation @ self.shift + shift
        return Shell(self.height, self.low, self.high, self.texture, self.gloss, turned, place)

    def paint(self, canvas: Image.Image, camera: Camera, light: Light) -> None:
        """Cast one ray per pixel of its bounding box and look up the texture where it hits."""
        box = _bounds(camera.project(self.outline), canvas.size, margin=2)
        if box is None:
            return
        # Single precision throughout: these few lines take a third of a photo's time.
        eye = (self.rotation.T @ (camera.position - self.shift)).astype(np.float32)
        ray = _rays(camera, box, self.rotation)  # (3, rows, columns)
        slope = np.float32((self.high - self.low) / self.height)
        # On the shell x² + z² = (low + slope y)²; with the ray put in, a quadratic in the distance.
        reach = np.float32(self.low) + slope * eye[1]
        square = ray[0] ** 2 + ray[2] ** 2 - (slope * ray[1]) ** 2
        half = ray[0] * eye[0] + ray[2] * eye[2] - slope * reach * ray[1]
        rest = eye[0] ** 2 + eye[2] ** 2 - reach**2
        inside = half**2 - square * rest
        # The nearer root in the form that stays finite where a ray runs along a slanted side.
        below = np.sqrt(np.maximum(inside, 0)) - half
        distance = rest / np.where(below > 1e-6, below, np.inf)
        x, y, z = (eye[axis] + distance * ray[axis] for axis in range(3))
        hit = (inside > 0) & (y >= 0) & (y <= self.height) & (distance > 0)
        rows, columns = self.texture.shape[:2]
        column = ((np.arctan2(x, z) / (2 * np.pi) + 0.5) * columns).astype(np.intp) % columns
        row = np.clip((1 - y / self.height) * rows, 0, rows - 1).astype(np.intp)
        towards = (self.rotation.T @ light.direction).astype(np.float32)
        radius = np.maximum(np.hypot(x, z), 1e-6)
        along = (x * towards[0] + z * towards[2]) / radius - slope * towards[1]
        facing = np.clip(along / np.sqrt(1 + slope**2), 0, 1)
        level = light.ambient + (1 - light.ambient) * facing
        shine = (255 * self.gloss) * np.square(np.square(np.square(facing**3)))
        seen = np.empty((*hit.shape, 4), np.uint8)
        seen[..., :3] = np.clip(self.texture[row, column] * level[..., None] + shine[..., None], 0, 255)
        seen[..., 3] = hit * np.uint8(255)
        canvas.alpha_composite(Image.fromarray(seen), box[:2])


@dataclass(frozen=True)
class Tube:
    """A bent tube of one colour, such as a handle."""

    path: Floats  # (n, 3)
    radius: float
    colour: Colour

    @property
    def outline(self) -> Floats:
        """Its middle line."""
        return self.path

    def move(self, rotation: Floats, shift: Floats) -> "Tube":
        """The tube turned about the origin, then shifted."""
        return Tube(self.path @ rotation.T + shift, self.radius, self.colour)

    def paint(self, canvas: Image.Image, camera: Camera, light: Light) -> None:
        """A thick line with a lighter core."""
        pixels = [(float(x), float(y)) for x, y in camera.project(self.path)]
        width = 2 * self.radius * camera.focal / float(np.linalg.norm(self.path.mean(0) - camera.position))
        dark = mix((0, 0, 0), self.colour, 0.35 + 0.65 * light.ambient)
        draw = ImageDraw.Draw(canvas)
        for ink, share in ((dark, 1.0), (mix(dark, self.colour, 0.7), 0.6), (self.colour, 0.25)):
            draw.line(pixels, fill=(*ink, 255), width=max(1, round(width * share)), joint="curve")


def homography(pixels: Floats, source: Floats) -> tuple[float, ...]:
    """Pillow's eight perspective coefficients that take four `pixels` to four `source` points."""
    equations, values = [], []
    for (x, y), (u, v) in zip(pixels, source, strict=True):
        equations += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    return tuple(float(value) for value in np.linalg.solve(np.array(equations), np.array(values)))


def _bounds(pixels: Floats, size: tuple[int, int], margin: int = 1) -> tuple[int, int, int, int] | None:
    """The part of the canvas that the points span; None if they lie outside."""
    left, top = np.maximum(np.floor(pixels.min(0)) - margin, 0).astype(int)
    right, bottom = np.minimum(np.ceil(pixels.max(0)) + margin, size).astype(int)
    return (int(left), int(top), int(right), int(bottom)) if left < right and top < bottom else None


def _shrunk(texture: Image.Image, width: float, height: float) -> Image.Image:
    """The texture at no less than the size it is seen at: sampling a much larger one would sparkle."""
    factors = max(1, int(texture.width / max(width, 1))), max(1, int(texture.height / max(height, 1)))
    return texture if factors == (1, 1) else texture.reduce(factors)


def _rays(camera: Camera, box: tuple[int, int, int, int], rotation: Floats) -> NDArray[np.float32]:
    """Directions (3, rows, columns) of the pixels' rays in the coordinates of a turned part."""
    turn = (rotation.T @ camera.rotation.T).astype(np.float32)  # camera to part
    x = ((np.arange(box[0], box[2]) + 0.5 - camera.centre[0]) / camera.focal).astype(np.float32)
    y = ((np.arange(box[1], box[3]) + 0.5 - camera.centre[1]) / camera.focal).astype(np.float32)
    return turn[:, 0, None, None] * x + turn[:, 1, None, None] * y[:, None] + turn[:, 2, None, None]

"""One photo: a thing among others on a floor or a wall, seen from somewhere, partly hidden."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from insclr_demo import backdrops
from insclr_demo.camera import Camera, Floats, Light
from insclr_demo.pen import Colour, mix
from insclr_demo.photo import develop
from insclr_demo.solids import Solid

_SUPERSAMPLING = 2  # things are painted this much larger and shrunk, for smooth edges

Distractor = Callable[
    [bool, np.random.Generator], Solid
]  # draws a thing outside the catalogue; flat ones or not


@dataclass(frozen=True)
class _Set:
    """What is in front of the camera: the thing, what stands behind it and before it, and the light."""

    solid: Solid
    behind: list[Solid]
    before: list[Solid]
    camera: Camera
    light: Light


def photograph(solid: Solid, distractor: Distractor, size: int, rng: np.random.Generator) -> Image.Image:
    """A photo of `size` x `size` pixels of the solid; everything else in it is drawn at random."""
    scene = (_hang_on_wall if solid.flat else _stand_on_table)(solid, distractor, size, rng)
    picture = (_wall if solid.flat else _room)(scene.camera, size, rng)
    for other in scene.behind:
        picture = _add(picture, other, scene)
    if not solid.flat:
        picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 2)) * size / 224))
    for other in (scene.solid, *scene.before):
        picture = _add(picture, other, scene)
    if rng.random() < 0.12:
        picture.alpha_composite(_leaves(size, rng))
    return develop(picture.convert("RGB"), rng)


def cut_out(solid: Solid, longest: int, rng: np.random.Generator) -> Image.Image:
    """The solid alone, seen from somewhere, over nothing: RGBA whose longest side is about `longest` pixels."""
    if solid.flat:
        camera = Camera.around(
            np.zeros(3),
            _degrees(rng, -42, 42),
            _degrees(rng, -20, 20),
            _roll(rng),
            float(rng.uniform(1.7, 4)),
        )
    else:
        solid = _pose(solid, rng)
        height = float(solid.outline[:, 1].max())
        low, high = (8, 40) if height > 0.6 else (30, 65)
        middle = np.array([0, height / 2, 0])
        camera = Camera.around(
            middle,
            _degrees(rng, -15, 15),
            _degrees(rng, low, high),
            _roll(rng) / 2,
            float(rng.uniform(1.9, 4.5)),
        )
    camera = camera.frame(solid.outline, (longest / 2, longest / 2), longest)
    side = longest * _SUPERSAMPLING
    layer = Image.new("RGBA", (side, side))
    solid.paint(layer, camera.magnify(_SUPERSAMPLING), _lamp(rng))
    layer = layer.reduce(_SUPERSAMPLING)
    return layer.crop(layer.getchannel("A").point(lambda alpha: 255 * (alpha > 127)).getbbox())


def _add(picture: Image.Image, solid: Solid, scene: _Set) -> Image.Image:
    """The picture with one more solid, and its shadow, in front of what is there."""
    picture = _shade(picture, solid, scene)
    layer = Image.new("RGBA", (picture.width * _SUPERSAMPLING, picture.height * _SUPERSAMPLING))
    solid.paint(layer, scene.camera.magnify(_SUPERSAMPLING), scene.light)
    picture.alpha_composite(layer.reduce(_SUPERSAMPLING))
    return picture


def _turn(axis: int, angle: float) -> Floats:
    """Rotation about one axis."""
    a, b = (axis + 1) % 3, (axis + 2) % 3
    matrix = np.eye(3)
    matrix[a, a] = matrix[b, b] = math.cos(angle)
    matrix[a, b], matrix[b, a] = -math.sin(angle), math.sin(angle)
    return matrix


def _degrees(rng: np.random.Generator, low: float, high: float) -> float:
    return math.radians(rng.uniform(low, high))


def _lamp(rng: np.random.Generator) -> Light:
    direction = np.array([rng.uniform(-1, 1), rng.uniform(0.8, 1.8), rng.uniform(0.3, 1.3)])
    return Light(direction / np.linalg.norm(direction), float(rng.uniform(0.5, 0.8)))


def _frame(camera: Camera, solid: Solid, size: int, rng: np.random.Generator) -> Camera:
    """Zoomed and moved so that the thing takes two thirds or more of the frame, anywhere in it."""
    share = float(rng.uniform(0.68, 1.0))
    free = (1.05 - share) / 2
    middle = (0.5 + rng.uniform(-free, free)) * size, (0.5 + rng.uniform(-free, free)) * size
    return camera.frame(solid.outline, middle, share * size)


def _roll(rng: np.random.Generator) -> float:
    return math.radians(rng.normal(0, 9) if rng.random() < 0.9 else rng.uniform(-60, 60))


def _hang_on_wall(solid: Solid, distractor: Distractor, size: int, rng: np.random.Generator) -> _Set:
    """A flat thing on a wall, perhaps with others beside or across it."""
    camera = Camera.around(
        np.zeros(3), _degrees(rng, -42, 42), _degrees(rng, -20, 20), _roll(rng), float(rng.uniform(1.7, 4))
    )
    behind, before = [], []
    for _ in range(int(rng.choice((0, 0, 0, 0, 0, 1, 2)))):
        angle = rng.uniform(0, 2 * math.pi)
        place = np.array([1.1 * math.cos(angle), 1.15 * math.sin(angle), 0.0])
        behind.append(distractor(True, rng).move(_turn(2, rng.normal(0, 0.15)), place))
    if rng.random() < 0.1:
        angle = rng.uniform(0, 2 * math.pi)
        place = np.array([0.72 * math.cos(angle), 0.78 * math.sin(angle), 0.02])
        before.append(distractor(True, rng).move(_turn(2, rng.normal(0, 0.5)), place))
    return _Set(solid, behind, before, _frame(camera, solid, size, rng), _lamp(rng))


def _stand_on_table(solid: Solid, distractor: Distractor, size: int, rng: np.random.Generator) -> _Set:
    """A thing on a table, turned and perhaps laid down, with others around it."""
    solid = _pose(solid, rng)
    height = float(solid.outline[:, 1].max())
    low, high = (8, 40) if height > 0.6 else (30, 65)
    camera = Camera.around(
        np.array([0, height / 2, 0]), _degrees(rng, -15, 15), _degrees(rng, low, high), _roll(rng) / 2,
        float(rng.uniform(1.9, 4.5)),
    )  # fmt: skip
    behind, before = [], []
    for _ in range(int(rng.choice((0, 0, 0, 0, 0, 1, 2)))):
        place = np.array([rng.uniform(0.7, 1.5) * rng.choice((-1, 1)), 0, rng.uniform(-1.5, 0.0)])
        behind.append(distractor(False, rng).move(_turn(1, rng.uniform(-1, 1)), place))
    behind.sort(key=lambda other: float(other.outline[:, 2].mean()))
    if rng.random() < 0.1:
        place = np.array([rng.uniform(0.45, 0.75) * rng.choice((-1, 1)), 0, rng.uniform(0.6, 0.9)])
        before.append(distractor(False, rng).move(_turn(1, rng.uniform(-1, 1)), place))
    return _Set(solid, behind, before, _frame(camera, solid, size, rng), _lamp(rng))


def _pose(solid: Solid, rng: np.random.Generator) -> Solid:
    """Turned about its axis; one in four lies on its back or side, back on the ground."""
    turned = solid.move(_turn(1, _degrees(rng, -42, 42)), np.zeros(3))
    height = float(solid.outline[:, 1].max())
    if height > 0.45 and rng.random() < 0.1:
        axis = 2 if solid.round else int(rng.choice((0, 2)))
        laid = solid.move(_turn(axis, -math.pi / 2), np.zeros(3))
        turned = laid.move(_turn(1, _degrees(rng, -50, 50)), np.zeros(3))
    spread = turned.outline
    middle = (spread.min(0) + spread.max(0)) / 2
    return turned.move(np.eye(3), -np.array([middle[0], spread[:, 1].min(), middle[2]]))


def _plane(
    camera: Camera, square: Image.Image, origin: Floats, across: Floats, down: Floats, size: int
) -> Image.Image:
    """A square of material laid on the plane through `origin`, as the camera sees it."""
    lens = np.array([(camera.focal, 0, camera.centre[0]), (0, camera.focal, camera.centre[1]), (0, 0, 1)])
    forward = lens @ camera.rotation @ np.stack([across, down, origin - camera.position], 1)
    back = np.diag([square.width, square.height, 1]) @ np.linalg.inv(forward)
    coefficients = tuple(float(value) for value in (back / back[2, 2]).ravel()[:8])
    mean = square.reduce(square.size).getpixel((0, 0))
    return square.transform(
        (size, size), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR, fillcolor=mean
    )


def _wall(camera: Camera, size: int, rng: np.random.Generator) -> Image.Image:
    """The wall, or table seen from above, that flat things hang or lie on."""
    reach = float(rng.uniform(2.5, 5))
    start = np.array([-reach * rng.uniform(0.4, 0.6), reach * rng.uniform(0.4, 0.6), 0])
    across, down = np.array([reach, 0, 0]), np.array([0, -reach, 0])
    wall = _plane(camera, backdrops.random_backdrop(rng), start, across, down, size)
    return wall.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 1.5)) * size / 224)).convert("RGBA")


def _room(camera: Camera, size: int, rng: np.random.Generator) -> Image.Image:
    """A floor before a wall."""
    depth, reach = float(rng.uniform(1.6, 3)), float(rng.uniform(4, 6))
    corner = np.array([-reach / 2, 0, -depth])
    far = backdrops.random_room(rng)
    wall = _plane(
        camera, far, corner + np.array([0, reach, 0]), np.array([reach, 0, 0]), np.array([0, -reach, 0]), size
    )
    wall = wall.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 2)) * size / 224))
    floor = _plane(
        camera, backdrops.random_backdrop(rng), corner, np.array([reach, 0, 0]), np.array([0, 0, reach]), size
    )
    wall.paste(floor, (0, 0), _below(camera, depth, size))
    return wall.convert("RGBA")


def _below(camera: Camera, depth: float, size: int) -> Image.Image:
    """A mask of the pixels on the floor's side of the line where it meets the wall."""
    left, right, ground = camera.project(np.array([(-1, 0, -depth), (1, 0, -depth), (0, 0, 0)], float))
    along = (right - left) / np.linalg.norm(right - left)
    out = ground - left - along * float((ground - left) @ along)
    out, far = out / np.linalg.norm(out), 20.0 * size
    corners = [left - far * along, left + far * along, left + far * (along + out), left + far * (out - along)]
    mask = Image.new("L", (size, size))
    ImageDraw.Draw(mask).polygon([(float(x), float(y)) for x, y in corners], fill=255)
    return mask


def _shade(picture: Image.Image, solid: Solid, scene: _Set) -> Image.Image:
    """The picture with the solid's shadow on what it stands or hangs on."""
    points, lamp = solid.outline, scene.light.direction
    axis = 2 if solid.flat else 1
    reach = points[:, axis : axis + 1] / max(float(lamp[axis]), 0.35) + (0.03 if solid.flat else 0.0)
    foot = points[points[:, axis] < points[:, axis].min() + 0.08]
    foot = foot.mean(0) + 1.06 * (foot - foot.mean(0))
    mask = Image.new("L", picture.size)
    draw = ImageDraw.Draw(mask)
    for ground, dark in ((points - reach * lamp, 105), (foot, 160)):
        ground[:, axis] = 0
        draw.polygon(_hull(scene.camera.project(ground)), fill=dark)
    mask = mask.filter(ImageFilter.GaussianBlur(0.02 * picture.width))
    shade = ImageChops.invert(mask).convert("RGB")
    return ImageChops.multiply(picture.convert("RGB"), shade).convert("RGBA")


def _hull(pixels: Floats) -> list[tuple[float, float]]:
    """The convex outline of some pixels (Andrew's monotone chain)."""
    points = sorted({(float(x), float(y)) for x, y in pixels})
    chains: list[list[tuple[float, float]]] = []
    for ordered in (points, points[::-1]):
        chain: list[tuple[float, float]] = []
        for x, y in ordered:
            while len(chain) > 1 and _clockwise(chain[-2], chain[-1], (x, y)):
                chain.pop()
            chain.append((x, y))
        chains.append(chain[:-1])
    return chains[0] + chains[1]


def _clockwise(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) <= 0


def _leaves(size: int, rng: np.random.Generator) -> Image.Image:
    """A plant that hangs into the frame from one side, close to the lens."""
    layer = Image.new("RGBA", (size, size))
    draw = ImageDraw.Draw(layer)
    green: Colour = mix((52, 96, 44), backdrops.random_colour(rng, 0.6), float(rng.uniform(0, 0.4)))
    side = int(rng.integers(4))
    for _ in range(int(rng.integers(4, 9))):
        base = np.array([rng.uniform(0, 1), -0.03])
        stem = np.array([rng.normal(0, 0.12), rng.uniform(0.12, 0.3)])
        wide = np.array([-stem[1], stem[0]]) * rng.uniform(0.14, 0.24)
        along = np.linspace(0, 1, 9)
        bulge = np.sin(np.pi * along**0.7)
        edge = [base + stem * a + wide * b for a, b in zip(along, bulge, strict=True)]
        edge += [base + stem * a - wide * b for a, b in zip(along[::-1], bulge[::-1], strict=True)]
        shade = mix(green, (0, 0, 0), float(rng.uniform(0, 0.4)))
        draw.polygon([_edge(point, side, size) for point in edge], fill=(*shade, 255))
        rib = [_edge(base, side, size), _edge(base + stem * 0.9, side, size)]
        draw.line(rib, fill=(*mix(shade, (255, 255, 255), 0.25), 255), width=max(1, size // 150))
    return layer.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.5, 2)) * size / 224))


def _edge(point: Floats, side: int, size: int) -> tuple[float, float]:
    """The pixel of a point given along and away from the top edge, moved to one of the four edges."""
    along, away = float(point[0]) * size, float(point[1]) * size
    return ((along, away), (size - away, along), (along, size - away), (away, along))[side]

"""The bodies that carry the prints: a thing becomes a list of surfaces, painted in order."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from insclr_demo import artwork
from insclr_demo.camera import Camera, Floats, Light
from insclr_demo.catalogue import Thing
from insclr_demo.pen import Colour, Pen, mix
from insclr_demo.surfaces import Panel, Shell, Surface, Tube

_DETAIL = 300  # pixels of print per unit of length; a thing is about one unit tall
FLAT_KINDS = frozenset({"poster", "sign", "record"})  # those that hang on a wall
_METAL: Colour = (196, 199, 204)


@dataclass(frozen=True)
class Solid:
    """A thing in space: standing on y = 0 around the origin, its front towards +z, or hanging flat on z = 0."""

    surfaces: tuple[Surface, ...]
    flat: bool

    @property
    def outline(self) -> Floats:
        """Points (n, 3) that span it."""
        return np.concatenate([surface.outline for surface in self.surfaces])

    @property
    def round(self) -> bool:
        """Whether it can roll."""
        return any(isinstance(surface, Shell) for surface in self.surfaces)

    def move(self, rotation: Floats, shift: Floats) -> "Solid":
        """The solid turned about the origin, then shifted."""
        return Solid(tuple(surface.move(rotation, shift) for surface in self.surfaces), self.flat)

    def paint(self, canvas: Image.Image, camera: Camera, light: Light) -> None:
        """Paint the farther surfaces first."""
        distances = [float(np.linalg.norm(s.outline.mean(0) - camera.position)) for s in self.surfaces]
        for number in sorted(range(len(distances)), key=lambda number: -distances[number]):
            self.surfaces[number].paint(canvas, camera, light)


def build(thing: Thing) -> Solid:
    """The body of a thing with its prints on it."""
    return Solid(tuple(_BUILDERS[thing.kind](thing)), flat=thing.kind in FLAT_KINDS)


def _pixels(*lengths: float) -> tuple[int, ...]:
    return tuple(max(8, round(length * _DETAIL)) for length in lengths)


def _between(thing: Thing, low: float, high: float) -> float:
    return low + (high - low) * thing.form


def _opaque(print_: Image.Image) -> Image.Image:
    return print_.convert("RGBA")


def _plain(colour: Colour) -> Image.Image:
    return Image.new("RGBA", (8, 8), (*colour, 255))


def _upright(left: Sequence[float], right: Sequence[float], height: float, print_: Image.Image) -> Panel:
    """A wall panel above the ground line from `left` to `right` (x, z)."""
    (x0, z0), (x1, z1) = left, right
    corners = np.array([(x0, height, z0), (x1, height, z1), (x1, 0, z1), (x0, 0, z0)], float)
    return Panel(corners, print_)


def _level(x: float, z: float, height: float, print_: Image.Image) -> Panel:
    """A level panel reaching `x` and `z` either side of the axis, its print upright for a viewer in front."""
    corners = np.array([(-x, height, -z), (x, height, -z), (x, height, z), (-x, height, z)], float)
    return Panel(corners, print_)


def _base(radius: float, colour: Colour) -> Surface:
    """The underside of a round thing."""
    return _disc(radius, 0.0, Image.new("RGB", (64, 64), colour)).move(np.diag([1.0, 1.0, -1.0]), np.zeros(3))


def _disc(radius: float, height: float, print_: Image.Image) -> Panel:
    """A round level panel."""
    size = print_.width
    cut = Image.new("RGB", (2 * size, 2 * size))
    Pen(cut).circle((0.5, 0.5), 0.5, (255, 255, 255))
    round_print = print_.convert("RGBA")
    round_print.putalpha(cut.convert("L").resize(print_.size, Image.Resampling.BOX))
    return _level(radius, radius, height, round_print)


def _block(width: float, height: float, depth: float, prints: Sequence[Image.Image]) -> list[Surface]:
    """A box from the prints of its front, right, back, left and top; its underside is like its top."""
    x, z = width / 2, depth / 2
    ground = [(-x, z), (x, z), (x, -z), (-x, -z)]
    walls = [
        _upright(ground[face], ground[(face + 1) % 4], height, _opaque(prints[face])) for face in range(4)
    ]
    lid = _level(x, z, height, _opaque(prints[4]))
    floor = _level(x, z, 0.0, _opaque(prints[4])).move(np.diag([1.0, 1.0, -1.0]), np.zeros(3))
    return [*walls, lid, floor]


def _carton(thing: Thing) -> list[Surface]:
    width, height, depth = _between(thing, 0.58, 0.85), 1.0, _between(thing, 0.5, 0.28)
    front = artwork.front(thing, _pair(width, height))
    side = artwork.side(thing, _pair(depth, height))
    return _block(width, height, depth, (front, side, front, side, artwork.top(thing, _pair(width, depth))))


def _pair(width: float, height: float) -> tuple[int, int]:
    across, down = _pixels(width, height)
    return across, down


def _book(thing: Thing) -> list[Surface]:
    width, height, depth = _between(thing, 0.66, 0.8), 1.0, _between(thing, 0.2, 0.1)
    front = artwork.front(thing, _pair(width, height))
    back = Image.new("RGB", front.size, mix(thing.inks.ground, thing.inks.dark, 0.15))
    spine = artwork.spine(thing, _pair(depth, height))
    pages = Image.new("RGB", _pair(depth, height), (238, 232, 214))
    for leaf in range(0, pages.width, 4):
        pages.paste((212, 205, 186), (leaf, 0, leaf + 1, pages.height))
    edge = pages.rotate(90, expand=True).resize(_pair(width, depth))
    return _block(width, height, depth, (front, pages, back, spine, edge))


def _round(thing: Thing, height: float, radius: float, gloss: float) -> Shell:
    label = artwork.wrap(thing, _pair(2 * math.pi * radius, height))
    return Shell(height, radius, radius, np.asarray(label), gloss)


def _shell(base: float, height: float, low: float, high: float, colour: Colour, gloss: float = 0.5) -> Shell:
    texture = np.full((2, 2, 3), colour, np.uint8)
    return Shell(height, low, high, texture, gloss, shift=np.array([0, base, 0], float))


def _can(thing: Thing) -> list[Surface]:
    radius, height = _between(thing, 0.24, 0.3), 0.84
    lid = Image.new("RGB", (96, 96), _METAL)
    pen = Pen(lid)
    pen.circle((0.5, 0.5), 0.44, mix(_METAL, (60, 62, 66), 0.4))
    pen.circle((0.5, 0.5), 0.41, mix(_METAL, (255, 255, 255), 0.3))
    pen.rectangle((0.42, 0.5, 0.16, 0.3), mix(_METAL, (60, 62, 66), 0.3), radius=0.08)
    body = _round(thing, height, radius, 0.5).move(np.eye(3), np.array([0, 0.06, 0], float))
    return [
        _base(radius * 0.86, mix(_METAL, (0, 0, 0), 0.2)),
        _shell(0, 0.06, radius * 0.86, radius, _METAL),
        body,
        _shell(0.06 + height, 0.07, radius, radius * 0.84, _METAL),
        _disc(radius * 0.84, height + 0.13, lid),
    ]


def _bottle(thing: Thing) -> list[Surface]:
    radius = _between(thing, 0.19, 0.24)
    glass = mix(thing.inks.dark, (30, 80, 50), 0.35)
    label = _round(thing, 0.46, radius * 1.01, 0.25).move(np.eye(3), np.array([0, 0.08, 0], float))
    return [
        _base(radius, mix(glass, (0, 0, 0), 0.3)),
        _shell(0, 0.08, radius, radius, glass, 0.8),
        label,
        _shell(0.54, 0.06, radius, radius, glass, 0.8),
        _shell(0.6, 0.2, radius, radius * 0.36, glass, 0.8),
        _shell(0.8, 0.14, radius * 0.36, radius * 0.32, glass, 0.8),
        _shell(0.94, 0.08, radius * 0.4, radius * 0.4, thing.inks.accent),
        _disc(radius * 0.4, 1.02, _plain(thing.inks.accent)),
    ]


def _jar(thing: Thing) -> list[Surface]:
    radius, height = _between(thing, 0.34, 0.42), 0.6
    content = mix(thing.inks.accent, thing.inks.dark, 0.3)
    label = _round(thing, height, radius, 0.3).move(np.eye(3), np.array([0, 0.08, 0], float))
    return [
        _base(radius * 0.96, mix(content, (0, 0, 0), 0.3)),
        _shell(0, 0.08, radius * 0.96, radius, content, 0.8),
        label,
        _shell(0.68, 0.08, radius, radius * 0.86, content, 0.8),
        _shell(0.76, 0.14, radius * 0.92, radius * 0.92, thing.inks.dark, 0.4),
        _disc(radius * 0.92, 0.9, artwork.lid(thing, _pixels(2 * radius)[0])),
    ]


def _tin(thing: Thing) -> list[Surface]:
    radius, height = 0.5, _between(thing, 0.2, 0.36)
    side = Image.new("RGB", _pair(2 * math.pi * radius, height), thing.inks.ground)
    pen = Pen(side)
    pen.rectangle((0, 0, 1, 0.35), thing.inks.accent)
    for turn in range(4):
        pen.letter(thing.brand, (turn / 4 + 0.03, 0.48, 0.19, 0.36), thing.inks.dark, thing.voice)
    return [
        Shell(height, radius, radius, np.asarray(side), 0.4),
        _disc(radius, height, artwork.lid(thing, _pixels(2 * radius)[0])),
    ]


def _mug(thing: Thing) -> list[Surface]:
    radius, height = _between(thing, 0.36, 0.42), 0.85
    glaze = artwork.mug_wrap(thing, _pair(2 * math.pi * radius, height))
    # The picture sits on both sides of the handle, so the wrap is turned a quarter: handle at +x.
    texture = np.roll(np.asarray(glaze), glaze.width // 4, axis=1)
    inside = Image.new("RGB", (96, 96), mix(thing.inks.light, thing.inks.ground, 0.15))
    Pen(inside).circle((0.5, 0.56), 0.42, mix((70, 40, 22), thing.inks.dark, 0.2))
    inside = inside.filter(ImageFilter.GaussianBlur(2))
    bend = np.linspace(-0.48 * math.pi, 0.48 * math.pi, 14)
    reach, rise = 0.26, 0.27
    path = np.stack([radius - 0.01 + reach * np.cos(bend), 0.45 + rise * np.sin(bend), 0 * bend], 1)
    foot = _between(thing, radius, radius * 0.8)
    return [
        _base(foot, mix(thing.inks.ground, (0, 0, 0), 0.25)),
        Shell(height, foot, radius, texture, 0.5),
        Tube(path, 0.055, mix(thing.inks.ground, thing.inks.light, 0.15)),
        _disc(radius, height, inside),
    ]


def _hanging(width: float, height: float, print_: Image.Image) -> Panel:
    """A panel flat on the wall, just off it."""
    x, y = width / 2, height / 2
    corners = np.array([(-x, y, 0.02), (x, y, 0.02), (x, -y, 0.02), (-x, -y, 0.02)], float)
    return Panel(corners, print_.convert("RGBA"))


def _poster(thing: Thing) -> list[Surface]:
    width = _between(thing, 0.66, 0.78)
    return [_hanging(width, 1.0, artwork.front(thing, _pair(width, 1.0)))]


def _record(thing: Thing) -> list[Surface]:
    return [_hanging(0.9, 0.9, artwork.front(thing, _pair(0.9, 0.9)))]


def _sign(thing: Thing) -> list[Surface]:
    width = 0.9 if thing.style % 3 == 0 else _between(thing, 0.9, 1.2)
    return [_hanging(width, 0.9, artwork.board(thing, _pair(width, 0.9)))]


_BUILDERS: dict[str, Callable[[Thing], list[Surface]]] = {
    "carton": _carton,
    "can": _can,
    "poster": _poster,
    "book": _book,
    "mug": _mug,
    "bottle": _bottle,
    "sign": _sign,
    "record": _record,
    "jar": _jar,
    "tin": _tin,
}

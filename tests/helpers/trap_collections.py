"""Collections in which the nearest photo is easily the wrong one, drawn from a seed; labels only measure."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance

from insclr_demo.catalogue import Thing, catalogue, distractors
from insclr_demo.scene import photograph
from insclr_demo.solids import FLAT_KINDS, Solid, build

SIDE = 160
Photos = dict[str, list[Image.Image]]  # by instance


def same_view_of_different_things(seed: int = 0) -> Photos:
    """Twelve stands, each with its own background and framing, on which forty small tokens take turns.

    The stand fills the photo and repeats; the token, which is what is asked for, has 0.4 of its side: smaller ones
    the network does not see at all, and mAP is chance.
    """
    rng = np.random.default_rng(seed)
    stands = [_noise(rng, cells=6) for _ in range(12)]
    tokens = [_noise(rng, cells=3).resize((64, 64)) for _ in range(40)]
    photos: Photos = {}
    for number, token in enumerate(tokens):
        for stand in rng.permutation(12)[:10]:
            picture = _jittered(stands[stand], rng)
            picture.paste(token, tuple(int(v) for v in rng.integers(10, SIDE - 74, 2)))  # type: ignore[arg-type]
            photos.setdefault(f"token-{number}", []).append(picture)
    return photos


def one_thing_only(seed: int = 0) -> Photos:
    """A hundred photos of one thing: there is nothing to tell apart."""
    return {"only": _photographed(catalogue(1, seed)[0], 100, seed)}


def all_singles(seed: int = 0) -> Photos:
    """Two hundred things with one photo each, and a second photo of forty to measure with."""
    things = [*catalogue(160, seed), *distractors(seed)[:40]]
    return {
        thing.name: _photographed(thing, 2 if at < 40 else 1, seed + at) for at, thing in enumerate(things)
    }


def bursts(seed: int = 0) -> Photos:
    """Eighty things with three moments each, every moment photographed five times within a second."""
    photos: Photos = {}
    for at, thing in enumerate(catalogue(80, seed)):
        rng = np.random.default_rng([seed, at])
        moments = _photographed(thing, 3, seed + at)
        photos[thing.name] = [_jittered(one, rng, most=2) for one in moments for _ in range(5)]
    return photos


def two_families(seed: int = 0) -> Photos:
    """Two families of twenty-four look-alikes: one pattern in two sizes, told apart by a band of five dots."""
    photos: Photos = {}
    for family in range(2):
        body = _noise(np.random.default_rng([seed, family]), cells=10 + 6 * family)
        for member in range(24):
            marks = np.random.default_rng([seed, family, member]).integers(0, 256, (5, 3))
            rng = np.random.default_rng([seed, family, member, 1])
            photos[f"family-{family}-{member}"] = [_marked(body, marks, rng) for _ in range(12)]
    return photos


def screenshots(seed: int = 0) -> Photos:
    """Thirty windows of one program; eight states of each differ in their contents."""
    photos: Photos = {}
    for window in range(30):
        rng = np.random.default_rng([seed, window])
        bars = rng.integers(0, 256, (3, 3))
        photos[f"window-{window}"] = [_screen(bars, rng) for _ in range(8)]
    return photos


def scans_of_text(seed: int = 0) -> Photos:
    """Forty letters on the same paper, each scanned six times, a little askew."""
    photos: Photos = {}
    for letter in range(40):
        page = _page(np.random.default_rng([seed, letter]))
        rng = np.random.default_rng([seed, letter, 1])
        photos[f"letter-{letter}"] = [_jittered(page, rng, most=8, white=True) for _ in range(6)]
    return photos


TRAPS: dict[str, Callable[[int], Photos]] = {
    each.__name__: each
    for each in (
        same_view_of_different_things,
        one_thing_only,
        all_singles,
        bursts,
        two_families,
        screenshots,
        scans_of_text,
    )
}


def write(photos: Photos, folder: Path) -> Path:
    """The photos as files with a labels.csv, whose path is given back."""
    (folder / "images").mkdir(parents=True)
    rows = []
    for name, pictures in photos.items():
        for number, picture in enumerate(pictures):
            path = f"images/{name}-{number}.png"
            picture.save(folder / path)
            rows.append((path, name))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "instance"), *rows])
    return folder / "labels.csv"


def _photographed(thing: Thing, count: int, seed: int) -> list[Image.Image]:
    """Photos of a thing among others, as those of the demo collection."""
    others = {
        flat: [one for one in distractors(0) if (one.kind in FLAT_KINDS) == flat] for flat in (True, False)
    }

    def stranger(flat: bool, rng: np.random.Generator) -> Solid:
        return build(others[flat][int(rng.integers(len(others[flat])))])

    rng = np.random.default_rng([seed, 17])
    solid = build(thing)
    return [photograph(solid, stranger, SIDE, rng) for _ in range(count)]


def _noise(rng: np.random.Generator, cells: int) -> Image.Image:
    """A smooth pattern of so many cells a side."""
    return Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )


def _jittered(
    picture: Image.Image, rng: np.random.Generator, most: int = 12, white: bool = False
) -> Image.Image:
    """The picture moved, turned and lit a little otherwise."""
    angle, shift = float(rng.uniform(-most / 4, most / 4)), rng.uniform(-most, most, 2)
    fill = (250, 248, 240) if white else (90, 90, 90)
    moved = picture.rotate(angle, Image.Resampling.BICUBIC, translate=(shift[0], shift[1]), fillcolor=fill)
    return ImageEnhance.Brightness(moved).enhance(float(rng.uniform(0.8, 1.2)))


def _marked(body: Image.Image, marks: np.ndarray, rng: np.random.Generator) -> Image.Image:
    picture = body.copy()
    pen = ImageDraw.Draw(picture)
    for at, colour in enumerate(marks.tolist()):
        pen.ellipse((20 + 24 * at, 68, 40 + 24 * at, 88), fill=tuple(colour))
    return _jittered(picture, rng, most=20)


def _screen(bars: np.ndarray, rng: np.random.Generator) -> Image.Image:
    picture = Image.new("RGB", (SIDE, SIDE), (240, 240, 242))
    pen = ImageDraw.Draw(picture)
    pen.rectangle((0, 0, SIDE, 14), fill=(60, 64, 72))
    for at, colour in enumerate(bars.tolist()):
        pen.rectangle((4, 22 + 12 * at, 34, 30 + 12 * at), fill=tuple(colour))
    for row in range(9):
        pen.rectangle((42, 22 + 14 * row, int(rng.integers(60, 154)), 28 + 14 * row), fill=(150, 152, 160))
    return picture


def _page(rng: np.random.Generator) -> Image.Image:
    picture = Image.new("RGB", (SIDE, SIDE), (250, 248, 240))
    pen = ImageDraw.Draw(picture)
    for row in range(14):
        x = 12
        while x < 140:
            width = int(rng.integers(4, 22))
            pen.rectangle((x, 14 + 10 * row, min(x + width, 148), 17 + 10 * row), fill=(40, 40, 48))
            x += width + 4
    return picture

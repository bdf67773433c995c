"""What the demo collection shows: families of invented products that look alike."""

import re
from dataclasses import dataclass

import numpy as np

from insclr_demo.illustrations import PICTURES, Inks
from insclr_demo.patterns import PATTERNS
from insclr_demo.pen import Colour, Voice

KINDS = ("carton", "can", "poster", "book", "mug", "bottle", "sign", "record", "jar", "tin")
_FAMILY_SIZES = (3, 1, 2, 3, 1, 2, 2)
_EDIBLE = {"carton", "can", "bottle", "jar", "tin"}

_BRANDS = (
    "Velmora", "Pinquill", "Oolara", "Bramblo", "Havmark", "Luzette", "Tindra", "Zunder", "Nomiko", "Quillby",
    "Osprel", "Marvane", "Kettlo", "Fjordal", "Wexley", "Dunmorra", "Solvita", "Grettel", "Ambrosel", "Yarrowby",
    "Piccola", "Runa", "Threnody", "Ottoway", "Cinderby", "Mellowin", "Hixton", "Jorvika", "Sablewood", "Lorimer",
    "Umbrelo", "Callomay", "Eskelin", "Vantry", "Noctua", "Bellarosa", "Tamsin", "Orrery", "Willet", "Zephine",
)  # fmt: skip
_OTHER_BRANDS = (
    "Abelone", "Brisko", "Clovis", "Dapple", "Erminet", "Falkor", "Gustavo", "Hibern", "Indigar", "Junio",
    "Krillon", "Lumenta", "Mosaik", "Nimbula", "Opaline", "Pomonel", "Quasimo", "Rosalba", "Sirocca", "Tundral",
    "Ulmer", "Vireo", "Waxwing", "Xantho", "Yonder", "Zircon", "Aldous", "Bosco", "Cormo", "Delphin", "Egret",
    "Fernby",
)  # fmt: skip
_FLAVOURS = (
    "Lemon", "Mint", "Cherry", "Peach", "Ginger", "Cocoa", "Almond", "Plum", "Honey", "Lime", "Hazel", "Vanilla",
    "Juniper", "Sage", "Mango", "Fig", "Oolong", "Elder", "Quince", "Cassis",
)  # fmt: skip
_FIRST_WORDS = (
    "Glass", "Quiet", "Paper", "Northern", "Second", "Velvet", "Amber", "Hidden", "Seven", "Electric", "Hollow",
    "Silver", "Distant", "Copper", "Midnight", "Wild",
)  # fmt: skip
_SECOND_WORDS = (
    "Harbour", "Comet", "Garden", "Station", "Winter", "Lantern", "Orchard", "River", "Parade", "Signal", "Tiger",
    "Meadow", "Island", "Theatre", "Clock", "Sparrow",
)  # fmt: skip

# Ground, dark, accent, second, light.
_PALETTES: tuple[tuple[str, str, str, str, str], ...] = (
    ("f4e9d8", "22333b", "e4572e", "2e86ab", "ffffff"),
    ("17405c", "0b1d2b", "f5b841", "e4572e", "fdf3dc"),
    ("e9c46a", "264653", "e76f51", "2a9d8f", "fff8e7"),
    ("d62839", "2b0a0f", "ffd166", "7a1020", "fff1e6"),
    ("2f6f4f", "12261c", "f2c14e", "a7c957", "f6f4e8"),
    ("f7cad0", "4a1942", "d6336c", "5f7adb", "fff5f7"),
    ("1b1b2f", "0a0a14", "f72585", "4cc9f0", "f1f1fb"),
    ("a8dadc", "1d3557", "e63946", "457b9d", "f1faee"),
    ("6d4c41", "2a1a14", "ffb74d", "a1887f", "fbeee0"),
    ("5e548e", "231942", "f9c74f", "be95c4", "f4eefb"),
    ("f3722c", "3a1505", "fff275", "b23a06", "fff4e6"),
    ("dfe7da", "2f3e36", "6a994e", "bc4749", "ffffff"),
    ("2b2d42", "14151f", "ef233c", "8d99ae", "edf2f4"),
    ("bde0fe", "1b2a41", "ff8fa3", "3a86ff", "ffffff"),
    ("faf3dd", "3d405b", "81b29a", "e07a5f", "ffffff"),
    ("007f7b", "01302e", "ffd9a0", "ff6b5e", "eafffb"),
)


@dataclass(frozen=True)
class Thing:
    """One particular object: what it is, and everything its print is drawn from."""

    name: str
    kind: str
    brand: str
    title: str
    inks: Inks
    voice: Voice
    layout: int
    picture: int
    pattern: int
    form: float  # where in the kind's range of proportions, 0 to 1; shared by a family
    style: int  # seed of the print's small choices; shared by a family


def catalogue(count: int, seed: int) -> list[Thing]:
    """`count` things in families of up to three; a longer catalogue starts with the shorter one.

    The members of a family share kind, proportions, brand, lettering and layout. They differ in the title and
    in the colours, in the picture, or in both.
    """
    return _products(count, _BRANDS, seed, 1)


def distractors(seed: int) -> list[Thing]:
    """Things of other brands, to stand about in the photos: none of them is in the catalogue."""
    return _products(60, _OTHER_BRANDS, seed, 3)


def _products(count: int, names: tuple[str, ...], seed: int, stream: int) -> list[Thing]:
    brands = [names[number] for number in np.random.default_rng([seed, stream]).permutation(len(names))]
    things: list[Thing] = []
    family = 0
    while len(things) < count:
        edition = "" if family < len(brands) else f" {family // len(brands) + 1}"
        rng = np.random.default_rng([seed, stream, family])
        things += _family(family, brands[family % len(brands)] + edition, rng)
        family += 1
    return things[:count]


def _family(number: int, brand: str, rng: np.random.Generator) -> list[Thing]:
    kind, size = KINDS[number % len(KINDS)], _FAMILY_SIZES[number % len(_FAMILY_SIZES)]
    voice = Voice(
        weight=int(rng.integers(0, 5)),
        slant=float(rng.choice((0.0, 0.0, 0.22))),
        tracking=int(rng.choice((0, 0, 8, 18))),
        capitals=bool(rng.random() < 0.6),
    )
    differs = ("colours", "picture", "both")[(number + number // len(KINDS)) % 3]
    titles = _titles(kind, size, rng)
    palettes, pictures = rng.permutation(len(_PALETTES)), rng.permutation(len(PICTURES))
    # Neighbouring families of a kind take other layouts and patterns: only a family's own members look alike.
    layout, pattern = 3 * number + number // len(KINDS), (5 * number + 2) % len(PATTERNS)
    form, style = float(rng.random()), int(rng.integers(1 << 31))
    return [
        Thing(
            name=_slug(f"{kind}-{brand}-{titles[member]}"),
            kind=kind,
            brand=brand,
            title=titles[member],
            inks=_inks(_PALETTES[palettes[0 if differs == "picture" else member]]),
            voice=voice,
            layout=layout,
            picture=int(pictures[0 if differs == "colours" else member]),
            pattern=pattern,
            form=form,
            style=style,
        )
        for member in range(size)
    ]


def _titles(kind: str, count: int, rng: np.random.Generator) -> list[str]:
    if kind in _EDIBLE:
        return [_FLAVOURS[number] for number in rng.permutation(len(_FLAVOURS))[:count]]
    firsts, seconds = rng.permutation(len(_FIRST_WORDS)), rng.permutation(len(_SECOND_WORDS))
    return [f"{_FIRST_WORDS[firsts[i]]} {_SECOND_WORDS[seconds[i]]}" for i in range(count)]


def _inks(palette: tuple[str, ...]) -> Inks:
    return Inks(*(_colour(code) for code in palette))


def _colour(code: str) -> Colour:
    return int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())

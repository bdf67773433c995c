"""What happens to a scene on its way to a file: light, lens and sensor."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter


def develop(scene: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The scene under another light, seen through a lens, with the sensor's noise."""
    photo = _defocus(scene, rng)
    light = _falloff(photo.size, rng)
    if rng.random() < 0.2:
        light *= _window_shadow(photo.size, rng)
    warmth = float(rng.normal(0, 0.06))
    balance = np.array([1 + warmth, 1 + rng.normal(0, 0.03), 1 - warmth]) * rng.uniform(0.9, 1.3)
    levels = np.asarray(photo, np.float32) / 255 * light[..., None] * balance.astype(np.float32)
    levels = np.clip(levels, 0, 1) ** np.float32(rng.uniform(0.75, 1.15))
    contrast = np.float32(rng.uniform(0.8, 1.15))
    levels = (levels - np.float32(0.45)) * contrast + np.float32(0.45)
    grain = np.float32(abs(rng.normal(0, 0.016)))
    levels += grain * rng.standard_normal(levels.shape, np.float32)
    return Image.fromarray((np.clip(levels, 0, 1) * 255 + 0.5).astype(np.uint8))


def _defocus(scene: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Sharp in half the photos; soft, or moved during the exposure, in the others."""
    chance, unit = rng.random(), scene.width / 224
    if chance < 0.2:
        return scene.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.4, 1.3)) * unit))
    if chance < 0.3:
        return _blur_by_motion(scene, rng)
    return scene


def _blur_by_motion(scene: Image.Image, rng: np.random.Generator) -> Image.Image:
    angle, length = float(rng.uniform(0, np.pi)), float(rng.uniform(1.5, 3)) * scene.width / 224
    total = np.zeros((scene.height, scene.width, 3), np.float32)
    for step in np.linspace(-0.5, 0.5, 5):
        dx, dy = length * step * np.cos(angle), length * step * np.sin(angle)
        shift = (1, 0, float(dx), 0, 1, float(dy))
        total += np.asarray(
            scene.transform(scene.size, Image.Transform.AFFINE, shift, Image.Resampling.BILINEAR)
        )
    return Image.fromarray((total / 5).astype(np.uint8))


def _falloff(size: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float32]:
    """A lamp to one side and the lens's darker corners, as a factor (rows, columns)."""
    x = np.linspace(-1, 1, size[0], dtype=np.float32)[None, :]
    y = np.linspace(-1, 1, size[1], dtype=np.float32)[:, None]
    angle, slope = rng.uniform(0, 2 * np.pi), np.float32(rng.uniform(0, 0.3))
    vignette = np.float32(rng.uniform(0, 0.18))
    lamp = 1 + slope * (np.float32(np.cos(angle)) * x + np.float32(np.sin(angle)) * y)
    return np.asarray(lamp * (1 - vignette * (x**2 + y**2)), np.float32)


def _window_shadow(size: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float32]:
    """The soft edge of a shadow that falls across the scene."""
    small = Image.new("L", (64, 64), 255)
    draw = ImageDraw.Draw(small)
    dark = round(255 * rng.uniform(0.45, 0.75))
    slope = float(rng.uniform(-40, 40))
    for _ in range(int(rng.integers(1, 4))):
        x, width = float(rng.uniform(-20, 60)), float(rng.uniform(8, 40))
        draw.polygon([(x, 0), (x + width, 0), (x + width + slope, 64), (x + slope, 64)], fill=dark)
    small = small.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.8, 3))))
    return np.asarray(small.resize(size, Image.Resampling.BILINEAR), np.float32) / np.float32(255)

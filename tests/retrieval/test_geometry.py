"""Matched points: found where a thing is seen twice, and nowhere else."""

import math
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from helpers.blots import placed, textured
from insclr.retrieval.local_features import MAX_FEATURES, THUMBNAIL, LocalFeatures, extract_features
from insclr.retrieval.verification import match_features, verify


def test_a_thing_seen_again_has_points_a_transform_and_a_box() -> None:
    thing = textured(1)
    photo = placed(thing, 0, 0.75, (200, 100))
    found = verify(extract_features(thing, (0, 0, *thing.size)), extract_features(photo))
    assert found is not None
    assert found.inliers >= 20
    # The thing's 240 px became 180 of the photo's 480, from (200, 100) on.
    np.testing.assert_allclose(found.transform[:, :2], np.eye(2) * 180 / 480, atol=0.02)
    np.testing.assert_allclose(found.box, (200 / 480, 100 / 480, 380 / 480, 280 / 480), atol=0.02)
    np.testing.assert_allclose(
        found.found_points, (found.query_points * 180 + np.array([200, 100])) / 480, atol=0.015
    )


@pytest.mark.parametrize("angle", [15, 90, 180])
def test_a_turned_thing_is_found(angle: int) -> None:
    thing = textured(2)
    found = verify(extract_features(thing), extract_features(placed(thing, angle, 0.8, (150, 150))))
    assert found is not None
    turn = math.degrees(math.atan2(found.transform[1, 0], found.transform[0, 0]))
    assert (turn + angle + 180) % 360 - 180 == pytest.approx(0, abs=3)  # PIL turns the other way


def test_a_box_in_the_query_selects_the_thing() -> None:
    thing = textured(3)
    query = placed(thing, 0, 1.0, (20, 30), seed=5)
    photo = placed(thing, 0, 0.5, (300, 300), seed=6)
    features = extract_features(query, (20, 30, 260, 270))
    inside = features.points * 480
    assert (inside >= (19, 29)).all()
    assert (inside <= (261, 271)).all()
    found = verify(features, extract_features(photo))
    assert found is not None
    np.testing.assert_allclose(found.box, np.array([300, 300, 420, 420]) / 480, atol=0.02)


def test_different_things_have_no_geometry() -> None:
    photos = [extract_features(textured(seed)) for seed in range(10, 16)]
    assert not any(verify(a, b) for i, a in enumerate(photos) for b in photos[:i])


def test_a_mirrored_thing_has_no_geometry() -> None:
    thing = textured(4)
    assert verify(extract_features(thing), extract_features(ImageOps.mirror(thing))) is None


@pytest.mark.parametrize("colour", ["black", "white", "grey"])
def test_one_colour_has_no_points_and_no_geometry(colour: str) -> None:
    empty = extract_features(Image.new("RGB", (200, 200), colour))
    assert len(empty) == 0
    assert verify(empty, empty) is None
    assert verify(extract_features(textured(1)), empty) is None
    assert LocalFeatures.from_bytes(empty.to_bytes()).points.shape == (0, 2)


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (15, 15)])
def test_a_tiny_image_has_no_points(size: tuple[int, int]) -> None:
    assert len(extract_features(Image.new("RGB", size, "red"))) == 0


def test_a_box_of_one_pixel_has_no_points() -> None:
    features = extract_features(textured(1), (10, 10, 11, 11))
    assert len(features) == 0
    assert verify(features, extract_features(textured(1))) is None


def fence(seed: int, step: int) -> Image.Image:
    """Equal posts at equal distances, a little noise over all."""
    generator = np.random.default_rng(seed)
    picture = Image.new("RGB", (320, 320), (90, 150, 90))
    draw = ImageDraw.Draw(picture)
    for x in range(seed * 7 % step, 320, step):
        draw.rectangle((x, 40, x + step // 2, 300), fill=(150, 100, 60))
        draw.polygon([(x, 40), (x + step // 4, 15), (x + step // 2, 40)], fill=(150, 100, 60))
    noise = generator.normal(0, 2, (320, 320, 3))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))


def windows(seed: int) -> Image.Image:
    """A house front: the same window again and again."""
    generator = np.random.default_rng(seed)
    wall = tuple(int(value) for value in generator.integers(120, 220, 3))
    picture = Image.new("RGB", (320, 320), wall)
    draw = ImageDraw.Draw(picture)
    for top in range(20 + 3 * seed, 300, 50 + seed):
        for left in range(15 + 2 * seed, 300, 40 + seed):
            draw.rectangle(
                (left, top, left + 20, top + 30), fill=(40, 50, 70), outline=(240, 240, 240), width=2
            )
            draw.line((left + 10, top, left + 10, top + 30), fill=(240, 240, 240), width=2)
    noise = generator.normal(0, 2, (320, 320, 3))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (fence(1, 24), fence(2, 31)),
        (fence(3, 20), fence(4, 40)),
        (windows(1), windows(4)),
        (windows(2), windows(7)),
    ],
)
def test_repeated_patterns_of_different_things_are_no_geometry(one: Image.Image, other: Image.Image) -> None:
    assert verify(extract_features(one), extract_features(other)) is None


def made_features(points: np.ndarray, descriptors: np.ndarray) -> LocalFeatures:
    count = len(points)
    return LocalFeatures(
        (1.0, 1.0),
        points.astype(np.float32),
        np.full(count, 0.02, np.float32),
        np.zeros(count, np.float32),
        descriptors,
        np.zeros((THUMBNAIL, THUMBNAIL), np.uint8),
    )


def test_everything_mapped_to_one_spot_or_line_is_no_geometry() -> None:
    generator = np.random.default_rng(0)
    descriptors = generator.integers(0, 4, (40, 128)).astype(np.uint8)
    spread = generator.random((40, 2))
    query = made_features(spread, descriptors)
    assert verify(query, made_features(spread, descriptors)) is not None
    for squeezed in ((0.01, 0.01), (1.0, 0.01), (0.01, 1.0)):
        found = made_features(0.5 + (spread - 0.5) * np.array(squeezed), descriptors)
        assert verify(query, found) is None
        assert verify(found, query) is None


def test_directions_and_sizes_that_contradict_the_places_are_no_geometry() -> None:
    generator = np.random.default_rng(0)
    descriptors = generator.integers(0, 4, (40, 128)).astype(np.uint8)
    spread = generator.random((40, 2))
    query = made_features(spread, descriptors)
    turned = replace(query, angles=query.angles + np.pi)
    grown = replace(query, scales=query.scales * 4)
    assert verify(query, turned) is None
    assert verify(query, grown) is None


def test_matches_are_mutual_and_clear() -> None:
    # Rows 0 and 1 of the found image are twins: which of them is meant cannot be told, so neither is matched.
    eye = (np.eye(128)[:4] * 3).astype(np.uint8)
    query = made_features(np.array([(0.1, 0.1), (0.5, 0.5), (0.9, 0.2)]), eye[:3])
    twins = np.stack([eye[0], eye[0], eye[1], eye[2]])
    found = made_features(np.array([(0.1, 0.1), (0.3, 0.1), (0.5, 0.5), (0.9, 0.2)]), twins)
    assert match_features(query, found).tolist() == [[1, 2], [2, 3]]


def test_features_are_kept_in_a_bounded_number_of_bytes() -> None:
    found = extract_features(textured(7, 640))
    kept = found.to_bytes()
    assert len(found) == MAX_FEATURES
    assert len(kept) == 8 + 32 * 32 + 38 * MAX_FEATURES
    again = LocalFeatures.from_bytes(kept)
    np.testing.assert_allclose(again.points, found.points, atol=1e-4)
    np.testing.assert_allclose(again.scales, found.scales, rtol=0.02)
    np.testing.assert_allclose(np.cos(again.angles - found.angles), 1, atol=1e-3)
    assert (again.descriptors == found.descriptors).all()
    assert (again.thumbnail == found.thumbnail).all()


def test_another_thing_on_the_same_table_is_contradicted_by_its_pixels() -> None:
    table, things = textured(20, 400), [Image.new("L", (200, 200), grey) for grey in (255, 0)]
    photos = []
    for i, thing in enumerate([*things, things[0]]):
        photo = table.rotate(4 * i, Image.Resampling.BICUBIC)
        photo.paste(thing, (100, 100))
        photos.append(extract_features(photo.crop((40, 40, 360, 360))))
    same, other = verify(photos[0], photos[2]), verify(photos[0], photos[1])
    assert same is not None
    assert other is not None
    assert not same.contradicted
    assert other.contradicted

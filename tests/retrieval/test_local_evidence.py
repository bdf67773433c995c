"""Points that retrieve, and what matched points are worth: learned without labels, off where they do not help."""

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.blots import placed, textured
from helpers.histogram_describer import HistogramDescriber
from insclr.data.images import ImageList, list_images
from insclr.evaluation.calibration import ArrayRows
from insclr.options import IndexOptions, Local, SearchOptions
from insclr.retrieval import local_index
from insclr.retrieval.index import index_images
from insclr.retrieval.local_database import LocalFeatureDatabase
from insclr.retrieval.local_evidence import (
    LocalEvidence,
    NeighbourTest,
    confirm_neighbours,
    fuse,
    learn_weight,
)
from insclr.retrieval.local_features import LocalFeatures, extract_features
from insclr.retrieval.local_index import LocalIndex, Vocabulary, Words
from insclr.retrieval.local_store import decision_of
from insclr.retrieval.query import image_query
from insclr.retrieval.score import Answer, ScoreCurve
from insclr.retrieval.search import search
from insclr.store import open_store


def build_index(images: list[Image.Image]) -> tuple[LocalIndex, list[LocalFeatures]]:
    features = [extract_features(one) for one in images]
    return LocalIndex.build(features), features


def test_votes_find_the_photo_that_shows_a_turned_thing() -> None:
    thing = textured(1)
    photos = [textured(seed, 480) for seed in range(30, 45)]
    photos[6] = placed(thing, 90, 0.75, (150, 120))
    index, _ = build_index(photos)
    scores, _ = index.vote(extract_features(thing))
    assert scores.argmax() == 6
    assert scores[6] > 3 * np.sort(scores)[-2]


@pytest.mark.parametrize("postings", [50, 2**20])
def test_votes_are_those_of_comparing_every_point_with_every_point(
    postings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_index, "_POSTINGS", postings)
    index, features = build_index([placed(textured(1), 40 * i, 0.6, (90, 90), seed=i) for i in range(5)])
    query = extract_features(textured(1))
    points, wanted = index.vocabulary.candidates(query)
    weights = np.zeros((len(query), 5))
    for image, words in enumerate(map(index.vocabulary.quantise, features)):
        for word, code in zip(words.words, words.codes, strict=True):
            bits = np.bitwise_count(wanted.codes ^ code)
            for place in np.flatnonzero((wanted.words == word) & (bits <= 20)):
                weight = np.exp(-((bits[place] / 12) ** 2))
                weights[points[place], image] = max(weights[points[place], image], weight)
    expected = (1 - np.log(np.maximum((weights > 0).sum(1), 1)) / np.log(6)) ** 3
    scores, rarity = index.vote(query)
    np.testing.assert_allclose(rarity, expected, atol=1e-6)
    sizes = np.array([len(one) for one in features])
    np.testing.assert_allclose(scores, expected @ weights / np.sqrt(sizes + 50), rtol=1e-4)


def test_points_that_many_photos_have_count_little() -> None:
    logo = textured(2, 160)
    photos = [placed(logo, 0, 1.0, (20 * i, 10 * i), seed=60 + i) for i in range(12)]
    index, _ = build_index(photos)
    query = placed(logo, 0, 1.0, (100, 50), seed=80)
    photos_features = extract_features(query)
    _, rarity = index.vote(photos_features)
    inside = np.all(
        (photos_features.points * 480 > (105, 55)) & (photos_features.points * 480 < (255, 205)), axis=1
    )
    assert inside.sum() > 20
    assert rarity[inside].mean() < 0.3 < 0.6 < rarity[~inside].mean()


def test_an_index_of_nothing_and_a_query_of_nothing() -> None:
    index, _ = build_index([Image.new("RGB", (200, 200), "grey")] * 3)
    assert index.vote(extract_features(textured(1)))[0].tolist() == [0, 0, 0]
    index, _ = build_index([textured(1), textured(2)])
    scores, rarity = index.vote(extract_features(Image.new("RGB", (200, 200))))
    assert (scores.tolist(), len(rarity)) == ([0, 0], 0)


def test_words_and_vocabulary_are_kept_as_they_are() -> None:
    features = [extract_features(textured(seed)) for seed in (1, 2)]
    vocabulary = Vocabulary.learn(features, 2)
    again = Vocabulary.from_bytes(vocabulary.to_bytes())
    assert again.images == 2
    words = vocabulary.quantise(features[0])
    assert len(words.to_bytes()) == 10 * len(features[0])
    for found in (again.quantise(features[0]), Words.from_bytes(words.to_bytes())):
        assert (found.words == words.words).all()
        assert (found.codes == words.codes).all()


def test_answers_of_people_decide_what_matched_points_are_worth() -> None:
    """Four tables, under different things: the points agree, and people answer that the photos show others."""
    photos = [placed(textured(i % 4), 0, 1, (9 * i, 90), seed=100 + i) for i in range(16)]
    features = [extract_features(one) for one in photos]
    rows = ArrayRows(np.tile(np.eye(4, dtype=np.float32), (4, 1)))
    local = LocalEvidence(np.arange(16), LocalIndex.build(features), lambda ids: [features[i] for i in ids])
    pairs = [(i, j) for i in range(16) for j in range(i) if i % 4 == j % 4]
    cosines = ScoreCurve((-1.0, 0.0, 1.0), (0.0, 0.1, 0.5), 16, 16)
    different, same = (
        learn_weight(local, rows, cosines, [Answer(i, j, said) for i, j in pairs]) for said in (False, True)
    )
    assert different < 0.2
    assert same >= 1
    assert learn_weight(local, rows, cosines, []) == 1


def test_evidence_outweighs_a_low_score_and_its_absence_changes_nothing() -> None:
    scores = np.array([0.0, 0.02, 0.3, 0.3])
    fused = fuse(scores, np.array([4.0, 0.0, np.nan, 0.0]))
    # A cosine alone is never surer than 0.02; four rare points are worth seven in the log-odds.
    assert fused == pytest.approx([1 / (1 + 49 * np.exp(-7)), 0.02, 0.3, 0.3])
    assert fuse(scores, np.full(4, 4.0), weight=0) == pytest.approx([0.02, 0.02, 0.3, 0.3])


def test_neighbours_must_be_confirmed_far_more_often_than_chance() -> None:
    assert NeighbourTest(0.3, 0.01).helps
    assert not NeighbourTest(0.3, 0.2).helps  # the same table under everything
    assert not NeighbourTest(0.01, 0.0).helps
    assert not NeighbourTest(0.3, 0.01, contradicted=0.5).helps
    assert "pixels contradict 50%" in NeighbourTest(0.3, 0.01, contradicted=0.5).reason()
    things = [textured(seed) for seed in range(4)]
    photos = [placed(things[i % 4], 0, 1, (9 * i, 90), seed=100 + i) for i in range(16)]
    features = [extract_features(one) for one in photos]
    # The views of a thing have descriptors that are equal, and orthogonal to those of the others.
    rows = ArrayRows(np.tile(np.eye(4, dtype=np.float32), (4, 1)))
    found = confirm_neighbours(rows, lambda ids: [features[one] for one in ids.tolist()])
    assert found.helps
    assert found.neighbours > 0.9 > 0.1 > found.random_pairs
    assert f"{found.neighbours:.0%}" in found.reason()


def photos_of(folder: Path, *, prints: bool) -> None:
    folder.mkdir()
    for i in range(36):
        image = placed(textured(i // 3), 30 * (i % 3), 0.9, (60, 50), seed=100 + i)
        image = image if prints else Image.new("RGB", (120, 120), (7 * i, 255 - 7 * i, 60))
        image.save(folder / f"{i}.png")


def test_a_collection_of_prints_turns_local_evidence_on_and_others_do_not(tmp_path: Path) -> None:
    photos_of(tmp_path / "prints", prints=True)
    photos_of(tmp_path / "smooth", prints=False)
    lines = {
        name: index_images(HistogramDescriber(), list_images(tmp_path / name), tmp_path / f"s-{name}").local
        for name in ("prints", "smooth")
    }
    assert lines["smooth"].startswith("local evidence off: matched points confirm")
    smooth = open_store(tmp_path / "s-smooth")
    assert LocalFeatureDatabase(smooth.parts).hashes() == set()
    smooth.close()
    store = open_store(tmp_path / "s-prints")
    decision = decision_of(store)
    assert decision is not None
    assert decision.used == lines["prints"].startswith("local evidence on")
    again = index_images(HistogramDescriber(), list_images(tmp_path / "prints"), tmp_path / "s-prints")
    assert again.local == ""  # said once
    off = index_images(
        HistogramDescriber(),
        list_images(tmp_path / "prints"),
        tmp_path / "s-prints",
        IndexOptions(local="off"),
    )
    assert off.local == "local evidence off: switched off"
    assert LocalFeatureDatabase(store.parts).hashes() == set()
    store.close()


def test_ten_thousand_times_the_same_logo_is_no_proof_and_takes_no_time() -> None:
    logo, print_, *others = (extract_features(textured(seed)) for seed in range(5, 13))
    assert len(logo) > 300
    vocabulary = Vocabulary.learn([logo, print_, *others], 10_001)
    index = LocalIndex(vocabulary, [*[vocabulary.quantise(logo)] * 10_000, vocabulary.quantise(print_)])
    began = time.process_time()
    for _ in range(5):
        scores, rarity = index.vote(logo)
    assert time.process_time() - began < 0.5  # 0.2 s a search where all 3 million pairs are compared
    assert rarity.max() < 0.01
    assert scores.max() < 0.01
    assert index.vote(print_)[0].argmax() == 10_000


def test_a_thing_that_cosines_miss_is_found_by_its_points(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    thing = textured(1)
    for seed in range(40):
        textured(50 + seed, 200).save(folder / f"{seed:02d}.png")
    placed(thing, 90, 0.5, (10, 10)).convert("L").convert("RGB").save(folder / "grey.png")
    index_images(HistogramDescriber(), list_images(folder), tmp_path / "store", local="on")
    store = open_store(tmp_path / "store")

    def paths(local: Local, box: bool = False) -> list[str]:
        query = image_query(thing, (0, 0, 240, 240) if box else None)
        found = search(store, HistogramDescriber(), [query], SearchOptions(top=3, local=local))
        return [one.path for one in found]

    assert "grey.png" not in paths("off")
    assert paths("on")[0] == paths("on", box=True)[0] == "grey.png"
    store.close()


def tilt(image: Image.Image) -> Image.Image:
    """The photo as a plane seen from the upper left, smaller, on grey."""
    width, height = image.size
    corners = [(0.2, 0.25), (0.9, 0.1), (0.8, 0.75), (0.3, 0.9)]
    # PIL wants the eight numbers that lead from the new photo back to the old one.
    rows, values = [], []
    for (x, y), (u, v) in zip(corners, [(0, 0), (1, 0), (1, 1), (0, 1)], strict=True):
        x, y, u, v = x * width, y * height, u * width, v * height
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    back = np.linalg.solve(np.array(rows), np.array(values)).tolist()
    return image.transform(
        image.size, Image.Transform.PERSPECTIVE, back, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128)
    )


def hide(image: Image.Image) -> Image.Image:
    """The tilted photo without its left half."""
    tilted = tilt(image)
    tilted.paste((60, 60, 60), (0, 0, image.width // 2, image.height))
    return tilted


def crop(image: Image.Image) -> Image.Image:
    """A tenth of the photo's area, a little above its middle."""
    width, height = image.width * 0.1**0.5, image.height * 0.1**0.5
    left, top = (image.width - width) / 2, (image.height - height) / 3
    return image.crop((round(left), round(top), round(left + width), round(top + height)))


def test_a_tilted_a_hidden_and_a_small_part_of_a_print_find_its_photo(shared: Path, tmp_path: Path) -> None:
    covers = [f"dvd{number:03}/Reference_{number:03}.jpg" for number in range(1, 25, 2)]
    folder = shared / "data" / "smvs_dvd100" / "images"
    index_images(HistogramDescriber(), ImageList(folder, tuple(covers)), tmp_path / "store", local="on")
    store = open_store(tmp_path / "store")
    first = {
        (change.__name__, path): search(
            store,
            HistogramDescriber(),
            [image_query(change(Image.open(folder / path).convert("RGB")))],
            SearchOptions(local="on"),
        )[0]
        for change in (tilt, hide, crop)
        for path in covers[:4]
    }
    store.close()
    assert {asked: found.path for asked, found in first.items()} == {asked: asked[1] for asked in first}
    assert min(found.inliers or 0 for found in first.values()) >= 8


def test_points_of_what_is_not_meant_prove_nothing_and_the_others_still_do(tmp_path: Path) -> None:
    meant, other = textured(1), textured(2)
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in range(8):
        textured(50 + seed, 480).save(folder / f"{seed}.png")
    placed(meant, 30, 0.6, (60, 200)).save(folder / "meant.png")
    placed(other, 60, 0.6, (200, 90)).save(folder / "other.png")
    both = Image.new("RGB", (480, 240))
    both.paste(meant, (0, 0))
    both.paste(other, (240, 0))
    index_images(HistogramDescriber(), list_images(folder), tmp_path / "store", local="on")
    store = open_store(tmp_path / "store")

    def points(unlike: list[Image.Image]) -> dict[str, int | None]:
        found = search(
            store,
            HistogramDescriber(),
            [image_query(both)],
            SearchOptions(local="on"),
            unlike=[image_query(one) for one in unlike],
        )
        return {one.path: one.inliers for one in found}

    plain, moved = points([]), points([other])
    assert min(plain["meant.png"] or 0, plain["other.png"] or 0) >= 8
    assert next(iter(moved)) == "meant.png"
    assert moved["meant.png"] == pytest.approx(plain["meant.png"], rel=0.05)
    assert moved["other.png"] == 0
    store.close()

"""The public benchmarks: settings, boxes, distractors, missing images."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from insclr.errors import UserError
from insclr.evaluation import distractors as distractors_module
from insclr.evaluation.distractors import Distractors, read_distractors
from insclr.evaluation.evaluate import evaluate_protocol
from insclr.evaluation.protocol import load_protocol
from insclr.retrieval.rerank import RERANKERS, Ranking

RANKING = (7, 3, 0, 5, 9, 1, 2, 8, 4, 6)


def small_roxford(root, missing=()):
    truth = {"bbx": [0, 0, 4, 4], "easy": [3, 1], "hard": [5, 8], "junk": [7, 0]}
    content = {
        "imlist": [f"image_{i}" for i in range(10)],
        "qimlist": ["query_a", "query_b"],
        "gnd": [truth] * 2,
    }
    (root / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content))
    (root / "jpg").mkdir()
    for name in ("query_a", "query_b", *content["imlist"]):  # type: ignore[misc]
        if name not in missing:
            (root / "jpg" / f"{name}.jpg").touch()
    return load_protocol("roxford5k", root)


class Describer:
    """Descriptors that rank the database as in RANKING for every query; keeps what it was asked."""

    def __init__(self, unreadable=()):
        self.asked, self.unreadable = [], unreadable

    def __call__(self, images, boxes):
        self.asked.append((images.paths, boxes))
        rows = torch.zeros(len(images), 2)
        for row, path in zip(rows, images.paths, strict=True):
            name = path.removeprefix("jpg/").removesuffix(".jpg")
            angle = 0.0 if name.startswith("query") else 0.1 + 0.1 * RANKING.index(int(name[6:]))
            row[:] = torch.tensor([np.cos(angle), np.sin(angle)]) * (name not in self.unreadable)
        return rows


def test_settings_boxes_and_json(tmp_path):
    describe = Describer()
    result = evaluate_protocol(small_roxford(tmp_path), describe)
    assert describe.asked[0] == (("jpg/query_a.jpg", "jpg/query_b.jpg"), ((0, 0, 4, 4),) * 2)
    assert describe.asked[1][1] is None
    told = json.loads(json.dumps(result.to_json()))
    maps = {setting: told[setting]["map"] for setting in ("easy", "medium", "hard")}
    assert maps == pytest.approx({"easy": 79.1667, "medium": 83.5417, "hard": 70.8333}, abs=1e-3)
    assert told["medium"]["mp@10"] == pytest.approx(66.667, abs=1e-3)
    assert (told["queries"], told["images"], told["missing"]) == (2, 10, [])
    assert "83.54" in result.table()


def in_one(describe):
    return lambda images: iter([describe(images, None)])


def rows_of(distractors):
    return np.concatenate(list(distractors.blocks()))


@pytest.mark.parametrize("depth", [None, 5])
def test_streamed_distractors_score_as_if_they_were_in_the_database(tmp_path, monkeypatch, depth):
    protocol = replace(small_roxford(tmp_path), depth=depth)
    generator = np.random.default_rng(3)
    angles = generator.uniform(0, 1.5, 40)
    angles[:2] = 0.2, 0.5  # as far as images of the database: those come first
    far = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    monkeypatch.setattr(distractors_module, "SCORES_IN_MEMORY", 6)  # three distractors at once
    blocks = Distractors(lambda: iter([far[:7], far[7:8], far[8:]]))
    streamed = evaluate_protocol(protocol, Describer(), distractors=blocks)

    def unchanged(_queries, database, ranking):
        assert len(database) == 50  # a re-ranker has them all in memory: the slow reference
        return ranking

    whole = evaluate_protocol(protocol, Describer(), unchanged, distractors=Distractors.of(far))
    assert streamed.to_json() == whole.to_json()
    assert streamed.images == 50


def test_distractor_images_are_described_and_unreadable_ones_left_out(tmp_path):
    (tmp_path / "far").mkdir()
    for name in ("image_0.jpg", "image_1.jpg", "image_2.jpg"):
        (tmp_path / "far" / name).touch()
    describe = Describer(unreadable=("image_1",))
    rows = rows_of(read_distractors(tmp_path / "far", in_one(describe)))
    assert describe.asked == [(("image_0.jpg", "image_1.jpg", "image_2.jpg"), None)]
    angles = [0.1 + 0.1 * RANKING.index(number) for number in (0, 2)]
    np.testing.assert_allclose(rows, [[np.cos(a), np.sin(a)] for a in angles], atol=1e-6)


def test_missing_images_are_listed_counted_and_refused(tmp_path):
    protocol = small_roxford(tmp_path, missing=("image_3", "query_b"))
    embed = Describer()
    with pytest.raises(UserError, match=r"2 of 12 images") as error:
        evaluate_protocol(protocol, embed)
    assert "image_3.jpg" in str(error.value)
    assert "query_b.jpg" in str(error.value)
    assert "--allow-missing" in str(error.value)
    assert not embed.asked  # nothing was described in vain


def test_unreadable_images_are_refused_as_well(tmp_path):
    with pytest.raises(UserError, match=r"1 of 12 images are missing or unreadable:\n.*image_9"):
        evaluate_protocol(small_roxford(tmp_path), Describer(unreadable=("image_9",)))


def test_allowed_missing_and_unreadable_images_are_taken_out(tmp_path):
    protocol = small_roxford(tmp_path, missing=("image_3", "query_b"))
    result = evaluate_protocol(protocol, Describer(unreadable=("image_9",)), allow_missing=True)
    assert (result.queries, result.images, len(result.missing)) == (1, 8, 3)
    # Without images 3 and 9, easy is image 1 alone, and all before it are junk.
    assert result.scores["easy"].means["map"] == 1.0
    assert "not comparable" in result.table()


def test_a_setting_without_positives_has_no_number(tmp_path):
    protocol = small_roxford(tmp_path, missing=("image_5", "image_8"))
    told = evaluate_protocol(protocol, Describer(), allow_missing=True).to_json()
    assert told["hard"] == {"map": None, "mp@1": None, "mp@5": None, "mp@10": None, "queries": 0}
    assert told["easy"]["queries"] == 2  # type: ignore[index]


def test_no_query_left_is_an_error_even_when_missing_is_allowed(tmp_path):
    protocol = small_roxford(tmp_path, missing=("query_a", "query_b"))
    with pytest.raises(UserError, match="none of the 2 query images"):
        evaluate_protocol(protocol, Describer(), allow_missing=True)


def test_distractor_descriptors_follow_the_database(tmp_path):
    protocol = small_roxford(tmp_path)
    nearest = np.array([[1.0, 0.0]], dtype=np.float32)
    result = evaluate_protocol(protocol, Describer(), distractors=Distractors.of(nearest))
    assert result.images == 11
    # Every easy positive falls back by one place: ranks 1 and 3 instead of 0 and 2.
    expected = ((0 / 1 + 1 / 2) / 2 + (1 / 3 + 2 / 4) / 2) / 2
    assert result.scores["easy"].means["map"] == pytest.approx(expected)
    with pytest.raises(UserError, match="3 dimensions"):
        evaluate_protocol(
            protocol, Describer(), distractors=Distractors.of(np.ones((2, 3), dtype=np.float32))
        )


def test_distractor_files(tmp_path):
    rows = np.eye(3, dtype=np.float32)
    np.save(tmp_path / "far.npy", rows)
    assert np.array_equal(rows_of(read_distractors(tmp_path / "far.npy", in_one(Describer()))), rows)
    np.save(tmp_path / "flat.npy", rows[0])
    with pytest.raises(UserError, match="one row for each"):
        read_distractors(tmp_path / "flat.npy", in_one(Describer()))
    for damaged in (b"nothing", b""):
        (tmp_path / "bad.npy").write_bytes(damaged)
        with pytest.raises(UserError, match="not a readable"):
            read_distractors(tmp_path / "bad.npy", in_one(Describer()))


def test_re_ranking_changes_the_order(tmp_path):
    protocol = small_roxford(tmp_path)

    def backwards(_queries, _database, ranking):
        return Ranking(ranking.ids[:, ::-1], -ranking.scores[:, ::-1])

    plain, turned = (evaluate_protocol(protocol, Describer(), r) for r in (None, backwards))
    assert turned.scores["easy"].means["map"] < plain.scores["easy"].means["map"]
    evaluate_protocol(protocol, Describer(), RERANKERS["diffusion"])

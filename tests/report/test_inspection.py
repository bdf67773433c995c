import json
import math
from pathlib import Path

import pytest
import torch
from insclr.mining.criteria import Criteria
from insclr.report.inspection import inspect_round, load_inspection, save_inspection

from insclr.data.images import ImageList
from insclr.memory.bank import MemoryBank, MemoryBanks
from insclr.neighbours.pool import build_pool

# Five photos as directions in the plane, by their angle; the first two and the next two are one thing each.
ANGLES = [0, 10, 21, 40, 90]
THINGS = torch.tensor([0, 0, 1, 1, -1])
IMAGES = ImageList(Path("photos"), tuple(f"{angle}.jpg" for angle in ANGLES))


def cosine(degrees):
    return math.cos(math.radians(degrees))


def criteria(**changes):
    values = {
        "method": "D",
        "strategy": "plain",
        "batch_threshold": cosine(15),
        "sparsity": None,
        "aggregate": "mean",
        "choose": "topk",
        "k": 1,
        "memory_threshold": 0.6,
        "floor": 0.9,
        "repeats": 2,
        "random_negatives": 0,
        "ignore_above": None,
        "ignore_nearest": 0,
        "margin": 0.4,
        "normalise": "sum",
    }
    return Criteria(**(values | changes))


def inspect(instances=THINGS, **changes):
    features = torch.tensor([[cosine(angle), cosine(90 - angle)] for angle in ANGLES])
    banks = MemoryBanks(MemoryBank(5, 2), MemoryBank(5, 2))
    banks.plain.fill(features, 0)
    banks.augmented.fill(features, 0)
    pool = build_pool(features, 4)
    return inspect_round(pool, banks, criteria(**changes), IMAGES, instances, neighbours=1)


def tuple_of(look, anchor):
    return next(one for one in look["tuples"] if one["anchor"] == anchor)


def test_a_tuple_shows_what_was_selected_mined_and_passed_over():
    one = tuple_of(inspect(), "0.jpg")
    assert one["members"] == [
        {"path": "10.jpg", "similarity": pytest.approx(cosine(10), abs=1e-4), "right": True, "selected": True}
    ]
    # Repeat 1 takes 21.jpg: nearest to the set {0, 10}. Repeat 2 finds no mean of at least 0.9.
    (mined,) = one["mined"]
    assert (mined["path"], mined["repeat"], mined["right"]) == ("21.jpg", 1, False)
    assert mined["similarity"] == pytest.approx(cosine(21), abs=1e-4)
    assert mined["score"] == pytest.approx((cosine(21) + cosine(11)) / 2, abs=1e-4)
    third, last = one["passed"]
    assert (third["path"], third["repeat"], third["right"]) == ("40.jpg", 0, False)
    assert third["score"] == pytest.approx((cosine(40) + cosine(30) + cosine(19)) / 3, abs=1e-4)
    assert (last["path"], last["right"]) == ("90.jpg", None)


def test_the_summary_counts_positives_and_how_many_are_right():
    summary = inspect()["summary"]
    assert summary["anchors"] == 5
    # Nearest: 0-10 right, 10-0 right, 21-10 wrong, 40-21 right, 90-40 unknown.
    assert summary["nn"] == {"positives": 1.0, "precision": 3 / 4}
    # Within 15 degrees: the first three of them.
    assert summary["batch"] == {"positives": pytest.approx(3 / 5), "precision": pytest.approx(2 / 3)}


def test_histograms_count_the_similarities_in_fixed_bins():
    histograms = inspect()["histograms"]
    edges, counts = histograms["edges"], histograms["counts"]
    assert (edges[0], edges[-1], len(edges)) == (-1, 1, 81)
    # cos 10 twice and cos 11 lie above 0.975, cos 19 = 0.9455, cos 50 = 0.6428.
    found = {edges[i]: number for i, number in enumerate(counts["nearest neighbour"]) if number}
    assert found == {0.975: 3, 0.925: 1, 0.625: 1}
    assert sum(counts["random pairs"]) == 20_000
    assert sum(counts["mined"]) == sum(len(one["mined"]) for one in inspect()["tuples"])


def test_without_labels_nothing_is_called_right_or_wrong():
    look = inspect(instances=None)
    assert look["labelled"] is False
    assert look["summary"]["batch"]["precision"] is None
    assert {picture["right"] for one in look["tuples"] for picture in one["members"] + one["mined"]} == {None}


def test_methods_without_memory_mining_show_the_next_candidates_without_a_score():
    one = tuple_of(inspect(method="C"), "0.jpg")
    assert one["mined"] == []
    assert [(picture["path"], picture["score"]) for picture in one["passed"]] == [
        ("21.jpg", None),
        ("40.jpg", None),
        ("90.jpg", None),
    ]


def test_sparsity_that_leaves_no_score_is_plain_json():
    text = json.dumps(inspect(sparsity=0.999), allow_nan=False)
    assert json.loads(text)["tuples"][0]["mined"] == []


def test_equal_seeds_look_at_equal_anchors():
    assert [one["anchor"] for one in inspect()["tuples"]] == [one["anchor"] for one in inspect(k=2)["tuples"]]


def test_an_inspection_is_read_back_as_it_was_saved(tmp_path):
    look = inspect()
    save_inspection(tmp_path / "round-1", "start", look)
    assert load_inspection(tmp_path / "round-1", "start") == look
    assert load_inspection(tmp_path / "round-1", "end") is None

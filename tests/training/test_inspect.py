"""What the report shows of a tuple."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.seen_collection import NoBackbone
from insclr.data.images import ImageList
from insclr.methods.insclr import InsclrMethod, InsclrSettings
from insclr.methods.method import RoundStart
from insclr.model.network import DescriptorNetwork, GeM
from insclr.training.inspect import inspect_method

# Five images as directions in the plane, by their angle; the first two and the next two show one instance each.
ANGLES = [0, 10, 21, 40, 90]
INSTANCES = torch.tensor([0, 0, 1, 1, -1])
IMAGES = ImageList(Path("photos"), tuple(f"{angle}.jpg" for angle in ANGLES))


def cosine(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def inspect(instances: torch.Tensor | None = INSTANCES, **changes: Any) -> dict[str, Any]:
    features = torch.tensor([[cosine(angle), cosine(90 - angle)] for angle in ANGLES])
    backbone: Any = NoBackbone()
    backbone.channels = 2
    network = DescriptorNetwork(backbone, GeM(), dim=0)
    network.device_probe = torch.nn.Parameter(torch.zeros(1))
    settings = {
        "neighbours": 1,
        "pool": 4,
        "batch_threshold": cosine(15),
        "k": 1,
        "repeats": 1,
        "sparsity": 0.85,
    }
    method = InsclrMethod(InsclrSettings(**settings | changes))
    prepared = method.prepare(RoundStart(network, features, features[None], 1, seed=0, folder=Path("unused")))
    found = inspect_method(method, prepared.criteria, IMAGES, instances)
    assert found is not None
    return found


def tuple_of(look, anchor):
    return next(one for one in look["tuples"] if one["anchor"] == anchor)


def test_a_tuple_shows_what_was_selected_mined_and_passed_over():
    one = tuple_of(inspect(), "0.jpg")
    assert one["members"] == [
        {"path": "10.jpg", "similarity": pytest.approx(cosine(10), abs=1e-4), "right": True, "selected": True}
    ]
    # The nearest to the set {0, 10} is 21; of 40's cosines phi = 0.85 leaves the one with 10.
    (mined,) = one["mined"]
    assert (mined["path"], mined["repeat"], mined["right"]) == ("21.jpg", 1, False)
    assert mined["similarity"] == pytest.approx(cosine(21), abs=1e-4)
    assert mined["score"] == pytest.approx((cosine(21) + cosine(11)) / 2, abs=1e-4)
    third, last = one["passed"]
    assert (third["path"], third["repeat"], third["right"]) == ("40.jpg", 0, False)
    assert third["score"] == pytest.approx(cosine(30), abs=1e-4)
    assert (last["path"], last["right"], last["score"]) == ("90.jpg", False, None)


def test_the_summary_counts_positives_and_how_many_are_right():
    summary = inspect()["summary"]
    assert summary["anchors"] == 5
    # Nearest: 0-10 right, 10-0 right, 21-10 wrong, 40-21 right; 90 has no label.
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
    one = tuple_of(inspect(variant="C"), "0.jpg")
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

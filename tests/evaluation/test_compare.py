"""Intervals of differences between models, against resampling one query at a time."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from insclr.data.labels import Labels
from insclr.errors import UserError
from insclr.evaluation.compare import compare
from insclr.evaluation.evaluate import evaluate_labels


def results(noise, count=60, seed=0):
    """A result for each amount of noise on the vectors of ten things."""
    generator = torch.Generator().manual_seed(seed)
    names = tuple(f"thing {i % 10}" for i in range(count))
    labels = Labels(Path("photos"), tuple(f"{i}.png" for i in range(count)), names)
    clean = torch.randn(10, 16, generator=generator)[torch.arange(count) % 10]
    told = {}
    for name, amount in noise.items():
        rows = clean + amount * torch.randn(count, 16, generator=generator)
        told[name] = evaluate_labels(torch.nn.functional.normalize(rows, dim=1), labels)
    return told


def test_intervals_agree_with_resampling_one_query_at_a_time():
    two = results({"a": 1.5, "b": 1.0})
    found = compare(two, resamples=4000)
    generator = np.random.default_rng(1)
    a, b = 100 * two["a"].ap, 100 * two["b"].ap
    means, apart = [], []
    for _ in range(4000):
        drawn = generator.integers(len(a), size=len(a))
        means.append(b[drawn].mean())
        apart.append(b[drawn].mean() - a[drawn].mean())
    model = found.models[1]
    assert model.map.value == pytest.approx(two["b"].map)
    assert (model.map.low, model.map.high) == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.6)
    assert (model.difference.low, model.difference.high) == pytest.approx(
        np.quantile(apart, (0.025, 0.975)), abs=0.6
    )
    assert model.better == pytest.approx(np.mean(np.array(apart) > 0), abs=0.03)


def test_the_first_model_is_no_distance_from_itself_and_a_seed_repeats():
    two = results({"a": 1.5, "b": 1.0})
    once, again = compare(two, seed=3), compare(two, seed=3)
    assert once.models[0].difference == (0, 0, 0)
    assert once.to_json() == again.to_json()
    assert json.loads(json.dumps(once.to_json()))["models"][1]["name"] == "b"


def test_pairing_narrows_the_difference_of_models_that_err_alike():
    two = results({"a": 1.5})
    two["b"] = two["a"]
    model = compare(two).models[1]
    assert model.map.high > model.map.low + 1
    assert model.difference == (0, 0, 0)


def test_drawing_whole_instances_widens_the_interval():
    one = results({"a": 1.2}, count=200)
    one["a"].ap[:] = np.where(np.arange(200) % 10 < 5, 0.9, 0.1)  # things differ, queries of a thing do not
    by_query, by_instance = (compare(one, unit=unit).models[0].map for unit in ("query", "instance"))
    assert by_instance.high - by_instance.low > 2 * (by_query.high - by_query.low)


def test_the_table_has_a_line_for_each_model():
    text = compare(results({"first": 1.5, "second": 1.0})).table()
    assert text.splitlines()[1].startswith("first")
    assert text.splitlines()[2].startswith("second")
    assert "Differences from first" in text


def test_other_queries_cannot_be_compared():
    mixed = results({"a": 1.0}) | {"b": results({"b": 1.0}, count=50)["b"]}
    with pytest.raises(UserError, match="b was asked other queries than a"):
        compare(mixed)
    with pytest.raises(UserError, match="at least one model"):
        compare({})

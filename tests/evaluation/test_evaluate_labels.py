"""Leave-one-out figures of a labelled set, against a slow implementation."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from insclr.data.labels import Labels
from insclr.errors import UserError
from insclr.evaluation import evaluate
from insclr.evaluation.evaluate import evaluate_labels, require_images
from insclr.neighbours import exact


def make_labels(instances, roles=None):
    paths = tuple(f"{i}.jpg" for i in range(len(instances)))
    return Labels(Path("photos"), paths, tuple(instances), roles)


def unit_rows(count, dim, seed=0):
    rows = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=1)


def slow_leave_one_out(vectors, instances):
    """AP and the first positive's rank of each query, one comparison at a time."""
    results = {}
    for q in range(len(vectors)):
        others = [i for i in range(len(vectors)) if i != q]
        others.sort(key=lambda i: -float(vectors[q] @ vectors[i]))
        hits = [rank for rank, i in enumerate(others) if instances[i] == instances[q]]
        if hits:
            precisions = [(n + 1) / (rank + 1) for n, rank in enumerate(hits)]
            results[q] = (sum(precisions) / len(hits), hits[0])
    return results


@pytest.mark.parametrize("block_bytes", [2**28, 600])  # all queries in one block; two at a time
def test_agrees_with_a_slow_implementation(monkeypatch, block_bytes):
    blocks = partial(exact.score_blocks, block_bytes=block_bytes)
    monkeypatch.setattr(evaluate, "score_blocks", blocks)
    vectors = unit_rows(60, 8)
    instances = [f"thing {i % 7}" for i in range(58)] + ["alone", "lonely"]
    result = evaluate_labels(vectors, make_labels(instances))
    slow = slow_leave_one_out(vectors.double(), instances)
    assert result.queries.tolist() == sorted(slow)
    assert result.ap == pytest.approx([slow[q][0] for q in result.queries])
    assert result.first.tolist() == [slow[q][1] for q in result.queries]
    assert result.map == pytest.approx(100 * np.mean([ap for ap, _ in slow.values()]))
    assert result.recall(5) == pytest.approx(100 * np.mean([first < 5 for _, first in slow.values()]))


def test_the_first_results_leave_the_query_out():
    vectors = unit_rows(30, 6, seed=1)
    result = evaluate_labels(vectors, make_labels(["a", "b"] * 15))
    scores = vectors @ vectors.T
    scores.fill_diagonal_(-9)
    assert result.top.tolist() == scores.argsort(dim=1, descending=True)[:, :10].tolist()


def test_json_has_the_promised_keys_in_percent():
    vectors = torch.eye(4)[[0, 0, 1, 1]]
    told = evaluate_labels(vectors, make_labels(["a", "a", "b", "b"])).to_json()
    assert json.loads(json.dumps(told))["worst"][0] == {
        "path": "0.jpg",
        "instance": "a",
        "ap": 100,
        "first": 1,
    }
    keys = ("map", "r@1", "r@5", "r@10", "queries", "images")
    assert [told[key] for key in keys] == [100, 100, 100, 100, 4, 4]
    assert told["instances"] == {"a": 100, "b": 100}


def test_the_table_names_the_worst_query_and_the_weakest_instance():
    vectors = torch.eye(3)[[0, 0, 1, 2]]
    result = evaluate_labels(vectors, make_labels(["a", "a", "b", "b"]))
    text = result.table()
    assert text.index("  b") < text.index("  a")
    assert "2.jpg" in text
    assert len(result.worst(1)) == 1


def test_equal_descriptors_score_as_the_worst_ranking():
    """A collapsed network must not profit from the order of the files."""
    result = evaluate_labels(torch.ones(10, 4) / 2, make_labels(["a"] * 5 + ["b"] * 5))
    expected = np.mean([(n + 1) / (5 + n + 1) for n in range(4)])
    assert result.map == pytest.approx(100 * expected)


def test_queries_of_a_role_rank_the_index_alone():
    roles = ("query", "index", "index", "query")
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [1.0, 0.0]])
    result = evaluate_labels(vectors, make_labels(["a", "a", "b", "z"], roles))
    assert result.queries.tolist() == [0]  # the other query has no positive in the index
    assert result.images == 2
    assert result.map == pytest.approx(50)
    assert result.top[0, :3].tolist() == [2, 1, -1]


def test_no_positives_at_all_and_broken_vectors_are_refused():
    with pytest.raises(UserError, match="no query has a positive"):
        evaluate_labels(torch.eye(3), make_labels(["a", "b", "c"]))
    with pytest.raises(UserError, match="not finite"):
        evaluate_labels(torch.full((2, 2), float("nan")), make_labels(["a", "a"]))


def test_images_without_a_descriptor_are_refused_or_left_out():
    vectors = torch.eye(3)[[0, 0, 1, 1, 2]]
    vectors[1] = 0
    labels = make_labels(["a", "a", "b", "b", "a"])
    with pytest.raises(UserError, match=r"1 of 5 images are missing or unreadable:\n  1\.jpg"):
        evaluate_labels(vectors, labels)
    result = evaluate_labels(vectors, labels, allow_missing=True)
    assert result.images == 4
    assert [result.labels.paths[q] for q in result.queries] == ["0.jpg", "2.jpg", "3.jpg", "4.jpg"]


def test_a_re_ranker_that_changes_nothing_gives_the_same_numbers():
    vectors = unit_rows(80, 8, seed=2)
    labels = make_labels([f"thing {i % 9}" for i in range(80)])
    plain = evaluate_labels(vectors, labels)
    same = evaluate_labels(vectors, labels, lambda _queries, _database, ranking: ranking)
    assert same.ap == pytest.approx(plain.ap)
    assert same.top.tolist() == plain.top.tolist()


def test_missing_files_can_be_refused_before_any_work(tmp_path):
    (tmp_path / "0.jpg").touch()
    labels = Labels(tmp_path, ("0.jpg", "1.jpg"), ("a", "a"))
    with pytest.raises(UserError, match=r"1 of 2 images are missing or unreadable:\n  1\.jpg"):
        require_images(labels)
    require_images(labels, allow_missing=True)
    require_images(labels.subset(np.array([0])))


def test_names_in_the_table_cannot_forge_a_line():
    names = ("a\n99.00  b", "a\n99.00  b")
    labels = Labels(Path(), ("0\x1b[31m.jpg", "1.jpg"), names)
    lines = evaluate_labels(unit_rows(2, 4), labels).table().split("\n")
    assert sum(r"a\n99.00  b" in line for line in lines) == 1
    assert sum(r"0\x1b[31m.jpg" in line for line in lines) == 1


def test_of_many_queries_some_are_asked_and_always_the_same():
    instances = [number % 10 for number in range(200)]
    vectors = unit_rows(200, 8)
    whole = evaluate_labels(vectors, make_labels([str(one) for one in instances]))
    first, again = (
        evaluate_labels(vectors, make_labels([str(one) for one in instances]), most_queries=50)
        for _ in range(2)
    )
    assert len(first.queries) == len(set(first.queries)) == 50
    assert np.array_equal(first.queries, again.queries)
    np.testing.assert_allclose(first.ap, whole.ap[first.queries])  # each ranks all the others

"""Labels in place of mining: the ceiling."""

from dataclasses import replace
from pathlib import Path

import torch

from helpers.seen_collection import batch_of, learn, measured_map, seen_collection, truth
from insclr_rivals.oracle import Oracle, OracleSettings


def test_the_instance_attracts_and_every_other_repels(tmp_path: Path) -> None:
    start = replace(seen_collection(tmp_path, tuples=20), instances=truth())
    method = Oracle(OracleSettings())
    method.prepare(start)
    batch = batch_of(method, start)
    pairs = method.label(batch, 0, torch.Generator())
    assert pairs.query.all()
    instance = truth()[batch.ids]  # (T, M)
    assert (instance == instance[:, :1]).all()
    for t in range(20):
        for j, image in enumerate(batch.ids.flatten().tolist()):
            same = bool(truth()[image] == instance[t, 0])
            assert bool(pairs.negative[t, 0, j]) == (not same)
            assert bool(pairs.positive[t, 0, j]) == (j // 4 == t and j % 4 > 0)


def test_images_without_a_label_repel_and_are_never_anchors(tmp_path: Path) -> None:
    known = truth()
    known[::2] = -1
    start = replace(seen_collection(tmp_path), instances=known)
    method = Oracle(OracleSettings())
    method.prepare(start)
    drawn = torch.cat([method.sampler.step(n).flatten() for n in range(10)])
    assert (known[drawn] >= 0).all()


def test_it_is_a_ceiling(tmp_path: Path) -> None:
    start = replace(seen_collection(tmp_path, spread=0.8), instances=truth())
    method = Oracle(OracleSettings())
    method.prepare(start)
    before = measured_map(start)
    learn(method, OracleSettings(), start)
    assert measured_map(start) > before + 0.15

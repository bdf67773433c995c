"""Neighbours of the pretrained features, fixed for all rounds."""

from dataclasses import replace
from pathlib import Path

import torch

from helpers.seen_collection import batch_of, learn, measured_map, seen_collection
from insclr_rivals.scan_nn import ScanNn, ScanNnSettings

_SETTINGS = ScanNnSettings(nearest=4, neighbours=2)


def test_neighbours_come_from_the_pretrained_features_and_stay_for_all_rounds(tmp_path: Path) -> None:
    start = replace(seen_collection(tmp_path), kept=tmp_path / "kept")
    method = ScanNn(_SETTINGS)
    found = method.prepare(start)
    assert found.candidates is not None
    cosines = (start.plain @ start.plain.T).fill_diagonal_(-2)
    expected = cosines.topk(4).indices
    assert torch.equal(found.candidates[:, :4].long(), expected)
    # A second round sees other features, and keeps the neighbours of the first.
    later = replace(start, plain=start.plain.flip(0))
    again = ScanNn(_SETTINGS).prepare(later)
    assert again.candidates is not None
    assert torch.equal(again.candidates, found.candidates)


def test_all_members_attract_and_no_neighbour_of_the_anchor_repels(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = ScanNn(_SETTINGS)
    found = method.prepare(start)
    assert found.candidates is not None
    batch = batch_of(method, start)
    pairs = method.label(batch, 0, torch.Generator())
    assert pairs.query.all()
    for t, anchor in enumerate(batch.ids[:, 0].tolist()):
        near = set(found.candidates[anchor, :4].tolist())
        assert set(batch.ids[t, 1:].tolist()) <= near
        for j, image in enumerate(batch.ids.flatten().tolist()):
            own = j // 3 == t
            assert bool(pairs.positive[t, 0, j]) == (own and j % 3 > 0)
            assert bool(pairs.negative[t, 0, j]) == (
                not own and image not in near and image not in batch.ids[t].tolist()
            )


def test_retrieval_gets_better_where_neighbours_are_right(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, spread=0.4, tuples=20)
    method = ScanNn(_SETTINGS)
    method.prepare(start)
    before = measured_map(start)
    learn(method, _SETTINGS, start)
    assert measured_map(start) > before


def test_more_neighbours_than_images(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, instances=2, images=2, tuples=2)
    method = ScanNn(ScanNnSettings())
    assert method.prepare(start).criteria == {"nearest": 2, "neighbours": 2}

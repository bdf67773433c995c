"""The method that ships: what it takes for the same, for others, and for neither."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.seen_collection import batch_of, seen_collection, truth
from insclr.data.tuples import FeedbackGroups
from insclr.methods import calibrated as calibrated_module
from insclr.methods import method as method_module
from insclr.methods.calibrated import CalibratedMethod, CalibratedSettings
from insclr.methods.method import Batch
from insclr.mining.candidates import PairTrust, mean_precision
from insclr.training.guard import why_unsafe


@pytest.mark.parametrize("variant", ["A", "C", "D-anchor", "D"])
def test_positives_are_right_and_everything_that_may_be_right_is_no_negative(
    variant: str, tmp_path: Path
) -> None:
    start = seen_collection(tmp_path, spread=0.4)
    method = CalibratedMethod(CalibratedSettings(variant=variant))  # type: ignore[arg-type]
    found = method.prepare(start)
    assert found.candidates is not None
    assert found.positive is not None
    precision = mean_precision(truth(), torch.arange(60), found.candidates.long(), found.positive)
    assert precision is not None
    assert precision > (0.7 if variant == "A" else 0.9)  # A takes the nearest, whatever they are
    batch = batch_of(method, start)
    pairs = method.label(batch, 0, torch.Generator())
    # By hand, pair by pair: j repels i unless it was decided positive or ignored for the anchor of i.
    labels, batch_ids = method.labels, batch.ids.flatten().tolist()
    for t, anchor in enumerate(batch.ids[:, 0].tolist()):
        spared = (labels.positive[anchor] | labels.ignored[anchor]).nonzero()[:, 0]
        no_negatives = set(method.pool.ids[anchor][spared].tolist())
        positives = set(method.pool.ids[anchor][labels.positive[anchor]].tolist())
        own = {int(image) for image in batch.ids[t]}
        query = [int(batch.ids[t, m]) for m in range(4) if pairs.query[t, m]]
        assert query == [anchor, *(int(image) for image in batch.ids[t, 1:] if int(image) in positives)]
        for j, image in enumerate(batch_ids):
            repels = image not in no_negatives and image not in query
            assert bool(pairs.negative[t, 0, j]) == repels, (t, j, image in own)


def test_a_tuple_is_filled_with_mined_images(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = CalibratedMethod(CalibratedSettings())
    method.prepare(start)
    drawn = [set() for _ in range(60)]  # type: ignore[var-annotated]
    for step in range(60):
        for anchor, *members in method.sampler.step(step).tolist():
            drawn[anchor].update(members)
    for anchor, members in enumerate(drawn):
        positives = set(method.pool.ids[anchor][method.labels.positive[anchor]].tolist())
        assert len(positives) < 3 or members <= positives


def test_it_keeps_nothing_between_steps_and_needs_no_plain_view(tmp_path: Path) -> None:
    method = CalibratedMethod(CalibratedSettings())
    method.prepare(seen_collection(tmp_path))
    assert not method.needs.plain
    assert method.needs.views
    assert method.state_dict() == {}
    assert method.files() == {}


class _Sizes(TorchDispatchMode):
    """Records the largest dimension of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: list[int] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.largest += [
            max(one.shape, default=0) for one in tree_leaves(result) if isinstance(one, torch.Tensor)
        ]
        return result


def test_nothing_that_a_step_makes_is_as_wide_as_the_collection(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, instances=100)
    method = CalibratedMethod(CalibratedSettings(pool=12))
    with _Sizes() as of_a_round:
        method.prepare(start)
    batch = batch_of(method, start)
    with _Sizes() as of_a_step:
        method.label(batch, 0, torch.Generator())
    assert max(of_a_round.largest) >= len(start) == 600  # what is recorded
    assert 0 < max(of_a_step.largest) < len(start)


def test_it_explains_what_it_decided_with_the_network_it_was_prepared_with(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = CalibratedMethod(CalibratedSettings())
    method.prepare(start)
    told = method.explain(torch.tensor([0, 7]))
    assert told.candidates.shape == told.candidate_similarities.shape
    expected = start.descriptors[7] @ start.descriptors[told.candidates[1, 0]]
    assert told.candidate_similarities[1, 0].item() == pytest.approx(expected.item(), abs=1e-6)
    assert told.mined is not None
    assert not (told.mined & (told.candidates[:, :, None] == told.ids[:, None]).any(2)).any()


def test_what_people_said_outweighs_what_was_mined(tmp_path: Path) -> None:
    """Images 0 and 59, of different instances, are said to be one; 1, mined for 0 before, to be another."""
    start = seen_collection(tmp_path, spread=0.4)
    groups = torch.arange(60)
    groups[59] = 0
    spoken = torch.zeros(60, dtype=torch.bool)
    spoken[[0, 1, 59]] = True
    taught = FeedbackGroups(groups, spoken, torch.tensor([[0, 1]]))
    method = CalibratedMethod(CalibratedSettings())
    method.prepare(replace(start, feedback=taught))
    tuples = [row for step in range(20) for row in method.sampler.step(step)]
    of_first = [row.tolist() for row in tuples if row[0] == 0]
    assert of_first
    assert all(set(row[1:]) == {59} for row in of_first)
    ids = torch.tensor([[0, 59, 59, 59], [1, 2, 0, 3], [2, 0, 1, 3]])
    batch = Batch(ids, torch.zeros(1, 3, 4, start.network.dim))
    pairs = method.label(batch, 0, torch.Generator())
    assert pairs.query[0].all()  # 59 attracts, though nothing was mined about it
    assert not pairs.query[1, 2]  # 0 is different from 1, however similar
    flat = ids.flatten().tolist()
    negatives_of_first = {
        image for image, negative in zip(flat, pairs.negative[0, 0], strict=True) if negative
    }
    assert 1 in negatives_of_first
    assert 59 not in negatives_of_first
    untaught = CalibratedMethod(CalibratedSettings())
    untaught.prepare(start)
    before = untaught.label(batch, 0, torch.Generator())
    # Where people said nothing the decisions are those of the mining.
    assert torch.equal(pairs.query[2], before.query[2])
    assert torch.equal(pairs.negative[2], before.negative[2])


def test_what_matched_points_prove_is_added_to_what_was_mined(tmp_path: Path) -> None:
    """Images 0 and 59, of different instances, share points: both attract what was mined for them, and each other."""
    start = seen_collection(tmp_path, spread=0.4)
    groups = torch.arange(60)
    groups[59] = 0
    proven = FeedbackGroups(groups, torch.zeros(60, dtype=torch.bool), torch.zeros(0, 2, dtype=torch.int64))
    plain, method = CalibratedMethod(CalibratedSettings()), CalibratedMethod(CalibratedSettings())
    before, found = plain.prepare(start), method.prepare(replace(start, feedback=proven))
    assert before.positive is not None
    assert found.positive is not None
    added = found.positive & ~before.positive
    assert not (before.positive & ~found.positive).any()
    assert {(row, int(method.pool.ids[row, place])) for row, place in added.nonzero().tolist()} == {
        (0, 59),
        (59, 0),
    }
    tuples = [row.tolist() for step in range(40) for row in method.sampler.step(step)]
    with_first = {image for row in tuples if row[0] == 0 for image in row[1:]}
    assert 59 in with_first
    assert len(with_first) > 1
    batch = Batch(torch.tensor([[0, 1, 2, 3], [59, 58, 57, 56]]), torch.zeros(1, 2, 4, start.network.dim))
    assert not method.label(batch, 0, torch.Generator()).negative[0, 0, 4]  # 59 does not repel 0


def test_where_mined_pairs_are_untrusted_only_feedback_is_learned(tmp_path: Path) -> None:
    """A group of six was taught: five other positives for each of its six images, and no others at all."""
    start = seen_collection(tmp_path, spread=0.1)
    groups = torch.arange(60)
    groups[:6] = 0
    taught = FeedbackGroups(groups, groups == 0, torch.zeros(0, 2, dtype=torch.int64))
    method = CalibratedMethod(CalibratedSettings())
    found = method.prepare(replace(start, feedback=taught, trust=PairTrust.UNTRUSTED))
    assert found.positives_per_image == pytest.approx(6 * 5 / 60)
    assert why_unsafe(
        found, PairTrust.UNTESTED
    )  # half a positive an image is too little: the run keeps its start
    ids = torch.tensor([[0, 1, 2, 3], [10, 11, 6, 7]])
    pairs = method.label(Batch(ids, torch.zeros(1, 2, 4, start.network.dim)), 0, torch.Generator())
    assert pairs.query[0].all()
    assert pairs.query[1].tolist() == [True, False, False, False]
    trusted = CalibratedMethod(CalibratedSettings())
    trusted.prepare(start)
    mined = trusted.label(Batch(ids, torch.zeros(1, 2, 4, start.network.dim)), 0, torch.Generator())
    assert mined.query[1].sum() > 1
    # What was mined is no negative either.
    assert not pairs.negative[1, 0, 4:][mined.query[1]].any()


def test_a_large_collection_is_labelled_in_blocks_as_a_small_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CalibratedMethod(CalibratedSettings())
    whole.prepare(seen_collection(tmp_path / "whole", spread=0.4))
    monkeypatch.setattr(calibrated_module, "BLOCK_ROWS", 7)
    monkeypatch.setattr(calibrated_module, "MOST_MEASURED", 40)
    monkeypatch.setattr(method_module, "MAX_SINGLE_PRECISION_IMAGES", 10)
    start = seen_collection(tmp_path / "blocks", spread=0.4)
    assert start.descriptors.dtype == torch.float16
    blocks = CalibratedMethod(CalibratedSettings())
    found = blocks.prepare(start)
    # Half precision and own views of two thirds of the images move the thresholds a little, and few labels.
    assert (blocks.labels.positive != whole.labels.positive).float().mean() < 0.02
    assert found.positive is not None
    precision = mean_precision(truth(), torch.arange(60), blocks.pool.ids.long(), found.positive)
    assert precision is not None
    assert precision > 0.9


def test_labels_of_blocks_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = []
    for rows in (60, 7):
        monkeypatch.setattr(calibrated_module, "BLOCK_ROWS", rows)
        method = CalibratedMethod(CalibratedSettings())
        method.prepare(seen_collection(tmp_path, spread=0.4))
        labels.append(method.labels)
    assert labels[0].positive.any()
    assert torch.equal(labels[0].positive, labels[1].positive)
    assert torch.equal(labels[0].ignored, labels[1].ignored)

"""The paper's method: what it decides on, and what its banks and its loss read."""

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.seen_collection import batch_of, seen_collection
from insclr.methods.insclr import InsclrMethod, InsclrSettings
from insclr.methods.method import Batch


def _prepared(tmp_path: Path, **settings: Any) -> tuple[InsclrMethod, Any]:
    start = seen_collection(tmp_path)
    method = InsclrMethod(InsclrSettings(pool=20, **settings))
    method.prepare(start)
    return method, start


def test_it_decides_on_plain_views_alone(tmp_path: Path) -> None:
    method, start = _prepared(tmp_path, batch_threshold=0.5)
    batch = batch_of(method, start)
    pairs = method.label(batch, 0, torch.Generator())
    other = Batch(batch.ids, batch.views.flip(1), batch.plain)
    assert torch.equal(method.label(other, 0, torch.Generator()).query, pairs.query)
    # And by hand: members whose cosine with the anchor exceeds T_b.
    assert batch.plain is not None
    expected = (batch.plain[:, 1:] * batch.plain[:, :1]).sum(2) > 0.5
    assert torch.equal(pairs.query[:, 1:], expected)


@pytest.mark.parametrize("scales", [(0.5,), (1.0, 0.5)])
def test_multiscale_decides_on_exactly_the_scales_it_names(tmp_path: Path, scales: tuple[float, ...]) -> None:
    method = InsclrMethod(InsclrSettings(strategy="multiscale", scales=scales))
    assert method.needs.scales == scales
    start = seen_collection(tmp_path)
    method = InsclrMethod(InsclrSettings(pool=20, strategy="multiscale", scales=(0.5,), batch_threshold=0.5))
    method.prepare(start)
    batch = batch_of(method, start)
    half = torch.nn.functional.normalize(torch.randn(*batch.ids.shape, 16), dim=2)
    pairs = method.label(Batch(batch.ids, batch.views, batch.plain, (half,)), 0, torch.Generator())
    assert torch.equal(pairs.query[:, 1:], (half[:, 1:] * half[:, :1]).sum(2) > 0.5)


def test_the_banks_hold_the_batch_and_the_loss_reads_the_augmented_one(tmp_path: Path) -> None:
    method, start = _prepared(tmp_path)
    batch = batch_of(method, start)
    pairs = method.label(batch, 0, torch.Generator())
    assert batch.plain is not None
    last = int(batch.ids[-1, -1])
    torch.testing.assert_close(method.banks.plain.read(torch.tensor([last]))[0], batch.plain[-1, -1])
    (bank,) = pairs.bank
    torch.testing.assert_close(
        bank.rows, method.banks.augmented.read(method.pool.ids[batch.ids[:, 0]].long()), rtol=0, atol=0
    )
    assert bank.positive is not None
    assert not (bank.positive & bank.negative).any()


def test_random_bank_rows_are_negatives_but_for_the_tuple_and_the_nearest(tmp_path: Path) -> None:
    method, start = _prepared(tmp_path, variant="B", ignore_nearest=5, random_negatives=1000)
    batch = batch_of(method, start)
    pairs = method.label(batch, 0, torch.Generator().manual_seed(3))
    (bank,) = pairs.bank  # as many rows were asked for as there are: every row once
    for t, anchor in enumerate(batch.ids[:, 0].tolist()):
        spared = {*batch.ids[t].tolist(), *method.pool.ids[anchor, :5].tolist()}
        assert bank.negative[t].tolist() == [image not in spared for image in range(60)]


def test_the_nearest_are_no_negatives_whoever_brings_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, start = _prepared(tmp_path, ignore_nearest=7, sparsity=0.99, repeats=1)
    batch, asked = batch_of(method, start), []
    read = method.banks.augmented.read

    def remembered(ids: torch.Tensor) -> torch.Tensor:
        asked.append(ids.long())
        return read(ids)

    monkeypatch.setattr(method.banks.augmented, "read", remembered)
    (bank,) = method.label(batch, 0, torch.Generator()).bank
    near = method.pool.ids[batch.ids[:, 0], :7].long()
    is_near = (asked[-1][:, :, None] == near[:, None]).any(2)  # (T, P)
    assert is_near.any()
    assert bank.negative.any()
    assert not (bank.negative & is_near).any()


def test_stand_ins_for_unreadable_images_are_never_positives(tmp_path: Path) -> None:
    method, start = _prepared(tmp_path, strategy="nn")
    batch = batch_of(method, start)
    replaced = torch.zeros_like(batch.ids, dtype=torch.bool)
    replaced[0, 0], replaced[1, 2] = True, True
    pairs = method.label(Batch(batch.ids, batch.views, batch.plain, replaced=replaced), 0, torch.Generator())
    assert pairs.query[0].tolist() == [True, False, False, False]
    assert pairs.query[1].tolist() == [True, True, False, True]


def test_automatic_thresholds_are_what_one_percent_of_random_pairs_exceed(tmp_path: Path) -> None:
    start = seen_collection(tmp_path)
    method = InsclrMethod(InsclrSettings(pool=500, batch_threshold="auto", sparsity="auto"))
    found = method.prepare(start)
    descriptors = start.descriptors
    pairs = (descriptors @ descriptors.T)[~torch.eye(60, dtype=torch.bool)]
    assert (pairs > found.criteria["batch_threshold"]).float().mean().item() == pytest.approx(0.01, abs=0.004)
    assert found.criteria["sparsity"] == found.criteria["batch_threshold"]
    assert found.criteria["pool"] == 59  # all there are
    assert [reason.split(" = ")[0] for reason in found.reasons] == ["batch_threshold", "sparsity"]
    assert "memory_threshold" not in found.criteria  # choose = topk does not read it

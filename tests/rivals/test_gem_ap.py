"""The listwise loss: quantised average precision bin by bin."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.seen_collection import batch_of, learn, measured_map, seen_collection, truth
from insclr_rivals.gem_ap import GemAp, GemApSettings, quantised_ap


def test_the_quantised_ap_bin_by_bin() -> None:
    similarities, bins = 2 * torch.rand(4, 9) - 1, 6
    positive = torch.rand(4, 9) < 0.4
    positive[0] = False
    counted = torch.ones(4, 9, dtype=torch.bool)
    counted[2, 3], positive[2, 3] = False, False
    found = quantised_ap(similarities, positive, counted, bins)
    for query in range(4):
        right, everything, ap = 0.0, 0.0, 0.0
        for m in range(bins):
            centre, in_bin, right_in_bin = 1 - m / (bins - 1), 0.0, 0.0
            for result in range(9):
                s = min(1.0, max(0.0, float(similarities[query, result])))
                share = max(0.0, 1 - abs(s - centre) * (bins - 1)) * bool(counted[query, result])
                in_bin += share
                right_in_bin += share * bool(positive[query, result])
            right, everything = right + right_in_bin, everything + in_bin
            ap += (
                (right / everything if everything else 0.0)
                * right_in_bin
                / max(1, int(positive[query].sum()))
            )
        assert found[query].item() == pytest.approx(ap, abs=1e-5)


def test_with_fine_bins_it_is_the_average_precision() -> None:
    similarities = torch.tensor([[0.95, 0.85, 0.55, 0.25]])
    positive = torch.tensor([[True, False, True, False]])
    found = quantised_ap(similarities, positive, torch.ones_like(positive), 21)
    # Right at ranks 1 and 3: (1 / 1 + 2 / 3) / 2.
    assert found.item() == pytest.approx(5 / 6, abs=1e-5)


def test_learning_lowers_the_ap_error(tmp_path: Path) -> None:
    start = replace(seen_collection(tmp_path, spread=0.8), instances=truth())
    method = GemAp(GemApSettings())
    method.prepare(start)
    before, error = (
        measured_map(start),
        float(method.loss(batch_of(method, start), 0, torch.Generator()).loss.detach()),
    )
    learn(method, GemApSettings(), start)
    assert float(method.loss(batch_of(method, start), 0, torch.Generator()).loss.detach()) < error
    assert measured_map(start) > before + 0.1


def test_a_batch_without_a_positive_has_no_gradient_and_no_nan(tmp_path: Path) -> None:
    start = replace(seen_collection(tmp_path, images=1, instances=60), instances=torch.arange(60))
    method = GemAp(GemApSettings(images_per_tuple=2))
    method.prepare(start)
    batch = batch_of(method, start)
    single = replace(batch, ids=batch.ids[:, :1], views=batch.views[:, :, :1])
    loss = method.loss(single, 0, torch.Generator()).loss
    loss.backward()
    assert loss.item() == 1.0

"""Losses, labels and gradients against slow versions."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from insclr.methods.method import BankPairs, Pairs, contains, label_batch
from insclr.mining.expand import eligible_candidates
from insclr.training.loss import LossValue, contrastive_loss, softmax_loss


class Case:
    """A random batch with all the clashes that a small collection brings."""

    def __init__(self, seed: int, tuples: int, neighbours: int, pool: int, dim: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        images = 1 + neighbours + pool  # few images: the tuples share most of them
        order = torch.stack([torch.randperm(images, generator=generator) for _ in range(tuples)])
        self.tuple_ids = order[:, : 1 + neighbours]
        self.selected = torch.rand(tuples, 1 + neighbours, generator=generator) < 0.6
        self.selected[:, 0] = True
        # The pool of an anchor holds its neighbours too, as in training.
        self.pool_ids = order[:, 1 : 1 + pool].to(torch.int32)
        self.eligible = eligible_candidates(self.pool_ids, self.tuple_ids)
        self.mined = self.eligible & (torch.rand(tuples, pool, generator=generator) < 0.3)
        self.ignored_pool = torch.rand(tuples, pool, generator=generator) < 0.2
        self.batch_ignored = torch.rand(tuples, self.tuple_ids.numel(), generator=generator) < 0.2
        self.shared_ids = torch.randint(images, (7,), generator=generator)
        rows = torch.randn(tuples * (1 + neighbours) + tuples * pool + 7, dim, generator=generator)
        rows = torch.nn.functional.normalize(rows, dim=1)
        batch, rest = rows[: self.tuple_ids.numel()], rows[self.tuple_ids.numel() :]
        self.features = batch.view(tuples, 1 + neighbours, dim)
        self.bank = rest[: tuples * pool].view(tuples, pool, dim)
        self.shared_bank = rest[tuples * pool :]

    def pairs(self, ignore: bool = True, own: slice = slice(None)) -> Pairs:
        """The labels of the tuples `own`, as the paper's method gives them."""
        batch_ids, pool_ids = self.tuple_ids.reshape(-1), self.pool_ids[own].long()
        mined = self.mined[own]
        ignored = contains(pool_ids, mined, batch_ids)
        negative = self.eligible[own] & ~mined
        if ignore:
            ignored |= self.batch_ignored[own]
            negative &= ~self.ignored_pool[own]
        everyone = torch.ones_like(self.tuple_ids[own], dtype=torch.bool)
        shared = ~contains(self.tuple_ids[own], everyone, self.shared_ids)
        pairs = label_batch(
            self.tuple_ids[own],
            self.selected[own],
            ignored=ignored,
            batch_tuple_ids=self.tuple_ids,
            first_tuple=own.start or 0,
        )
        bank = (BankPairs(self.bank[own], negative, mined), BankPairs(self.shared_bank, shared))
        return replace(pairs, bank=bank)


cases = st.builds(
    Case,
    seed=st.integers(0, 10**6),
    tuples=st.integers(1, 4),
    neighbours=st.integers(1, 3),
    pool=st.integers(4, 9),
    dim=st.integers(2, 5),
)


def slow_pairs(
    case: Case, t: int, ignore: bool
) -> tuple[list[int], list[tuple[str, int]], list[tuple[str, int]]]:
    """The query set, the positives and the negatives of tuple t, as (where, place) pairs.

    A positive may be i itself: the loss leaves that pair out.
    """
    tuples, slots = case.tuple_ids.shape
    own = [t * slots + m for m in range(slots)]
    query_set = [t * slots + m for m in range(slots) if case.selected[t, m]]
    batch_ids = [int(case.tuple_ids[j // slots, j % slots]) for j in range(tuples * slots)]
    mined_ids = [int(i) for i, is_mined in zip(case.pool_ids[t], case.mined[t], strict=True) if is_mined]
    friends = [batch_ids[j] for j in query_set] + mined_ids

    positives = [("batch", j) for j in query_set]
    negatives = []
    for j in range(tuples * slots):
        if ignore and case.batch_ignored[t, j]:
            continue
        if (j in own and j not in query_set) or (j not in own and batch_ids[j] not in friends):
            negatives.append(("batch", j))
    for p, image in enumerate(case.pool_ids[t].tolist()):
        if image in [batch_ids[j] for j in own]:
            continue
        if case.mined[t, p]:
            positives.append(("bank", p))
        elif not (ignore and case.ignored_pool[t, p]):
            negatives.append(("bank", p))
    for r, image in enumerate(case.shared_ids.tolist()):
        if image not in [batch_ids[j] for j in own]:
            negatives.append(("shared", r))
    return query_set, positives, negatives


def slow_loss(
    case: Case, features: Tensor, margin: float, normalise: str, ignore: bool
) -> tuple[Tensor, float]:
    """The paper's loss, pair by pair; also how near any negative came to the margin."""
    batch = features.reshape(-1, features.shape[2])
    total, closest = features.new_zeros(()), math.inf
    for t in range(len(features)):
        query_set, positives, negatives = slow_pairs(case, t, ignore)
        rows = {"batch": batch, "bank": case.bank[t], "shared": case.shared_bank}
        of_tuple = features.new_zeros(())
        for i in query_set:
            attract = [(batch[i] * rows[w][j]).sum() for w, j in positives if (w, j) != ("batch", i)]
            repel = [(batch[i] * rows[w][j]).sum() for w, j in negatives]
            closest = min([closest, *(abs(s.item() - margin) for s in repel)])
            repel = [s for s in repel if s.item() > margin]
            if normalise == "mean":
                attract = [s / len(attract) for s in attract]
                repel = [s / len(repel) for s in repel]
            of_tuple = of_tuple + sum(repel) - sum(attract)
        mined = sum(where == "bank" for where, _ in positives) if normalise == "mined" else 0
        total = total + of_tuple / (len(query_set) + mined)
    return total / len(features), closest


@given(case=cases, ignore=st.booleans())
def test_labels_agree_with_the_slow_version(case: Case, ignore: bool) -> None:
    pairs = case.pairs(ignore)
    of_pool, of_shared = pairs.bank
    assert of_pool.positive is not None
    slots = case.tuple_ids.shape[1]
    for t in range(len(case.tuple_ids)):
        query_set, positives, negatives = slow_pairs(case, t, ignore)
        assert pairs.query[t].nonzero().squeeze(1).tolist() == [i - t * slots for i in query_set]
        for m in range(slots):
            i = t * slots + m
            in_query = i in query_set
            expected = [
                ("batch", j) in positives and j != i and in_query for j in range(case.tuple_ids.numel())
            ]
            assert pairs.positive[t, m].tolist() == expected
            expected = [("batch", j) in negatives and in_query for j in range(case.tuple_ids.numel())]
            assert pairs.negative[t, m].tolist() == expected
        places = range(case.pool_ids.shape[1])
        assert of_pool.positive[t].tolist() == [("bank", p) in positives for p in places]
        assert of_pool.negative[t].tolist() == [("bank", p) in negatives for p in places]
        assert of_shared.negative[t].tolist() == [("shared", r) in negatives for r in range(7)]


@given(
    case=cases,
    margin=st.floats(-0.2, 0.9),
    normalise=st.sampled_from(["sum", "mean", "mined"]),
    ignore=st.booleans(),
)
def test_loss_and_gradient_agree_with_the_slow_version(
    case: Case, margin: float, normalise: str, ignore: bool
) -> None:
    slow_features = case.features.clone().requires_grad_()
    expected, closest = slow_loss(case, slow_features, margin, normalise, ignore)
    assume(closest > 1e-6)
    (expected + 0 * slow_features.sum()).backward()  # a batch without a single pair is a constant
    features = case.features.clone().requires_grad_()
    value = contrastive_loss(
        features,
        case.pairs(ignore),
        margin=margin,
        normalise=normalise,  # type: ignore[arg-type]
    )
    value.loss.backward()
    assert value.loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert features.grad is not None
    assert torch.allclose(features.grad, slow_features.grad, atol=1e-5)  # type: ignore[arg-type]


def slow_softmax(case: Case, features: Tensor, temperature: float) -> Tensor:
    """Each positive against all negatives, pair by pair."""
    batch = features.reshape(-1, features.shape[2])
    total = features.new_zeros(())
    for t in range(len(features)):
        query_set, positives, negatives = slow_pairs(case, t, ignore=True)
        rows = {"batch": batch, "bank": case.bank[t], "shared": case.shared_bank}
        for i in query_set:
            repel = sum(((batch[i] * rows[w][j]).sum() / temperature).exp() for w, j in negatives)
            own = [(batch[i] * rows[w][j]).sum() for w, j in positives if (w, j) != ("batch", i)]
            for s in own:
                attract = (s / temperature).exp()
                total = total - (attract / (attract + repel)).log() / len(own) / len(query_set)
    return total / len(features)


@given(case=cases, temperature=st.floats(0.1, 1.0))
def test_the_softmax_and_its_gradient_agree_with_the_slow_version(case: Case, temperature: float) -> None:
    slow_features = case.features.clone().requires_grad_()
    expected = slow_softmax(case, slow_features, temperature)
    (expected + 0 * slow_features.sum()).backward()
    features = case.features.clone().requires_grad_()
    value = softmax_loss(features, case.pairs(), temperature=temperature)
    value.loss.backward()
    assert value.loss.item() == pytest.approx(expected.item(), abs=1e-4)
    assert torch.allclose(features.grad, slow_features.grad, atol=1e-4)  # type: ignore[arg-type]


def test_a_softmax_with_nothing_to_tell_apart_is_zero() -> None:
    features = torch.nn.functional.normalize(torch.randn(1, 2, 3), dim=2).requires_grad_()
    every, none = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, 2, dtype=torch.bool)
    value = softmax_loss(
        features, Pairs(every, ~torch.eye(2, dtype=torch.bool)[None], none), temperature=0.01
    )
    value.loss.backward()
    assert value.loss.item() == 0.0
    assert torch.equal(features.grad, torch.zeros(1, 2, 3))  # type: ignore[arg-type]


@given(case=cases, first=st.integers(0, 3), normalise=st.sampled_from(["sum", "mean"]))
def test_tuples_split_over_ranks_give_the_loss_of_the_whole_batch(
    case: Case, first: int, normalise: str
) -> None:
    tuples = len(case.tuple_ids)
    whole = case.features.clone().requires_grad_()
    contrastive_loss(whole, case.pairs(), normalise=normalise).loss.backward()  # type: ignore[arg-type]
    split = case.features.clone().requires_grad_()
    total = torch.zeros(())
    for own in (slice(0, min(first, tuples)), slice(min(first, tuples), tuples)):
        if own.start == own.stop:
            continue
        value = contrastive_loss(
            split[own],
            case.pairs(own=own),
            batch=split.flatten(0, 1),
            normalise=normalise,  # type: ignore[arg-type]
        )
        total = total + value.loss * (own.stop - own.start) / tuples
    total.backward()
    assert torch.allclose(split.grad, whole.grad, atol=1e-5)  # type: ignore[arg-type]


def two_tuples_of_one(similarity: float) -> LossValue:
    """Two anchors without neighbours: each is the other's only negative, at the given similarity."""
    features = torch.tensor([[[1.0, 0.0]], [[similarity, math.sqrt(1 - similarity**2)]]])
    pairs = label_batch(torch.tensor([[0], [1]]), torch.ones(2, 1, dtype=torch.bool))
    return contrastive_loss(features, pairs, margin=0.4)


def test_a_negative_exactly_at_the_margin_does_not_count() -> None:
    at_margin = float(torch.tensor(0.4))  # 0.4 as float32 holds it
    assert two_tuples_of_one(at_margin).loss.item() == 0
    just_above = float(torch.nextafter(torch.tensor(0.4), torch.tensor(1.0)))
    value = two_tuples_of_one(just_above)
    assert value.loss.item() == pytest.approx(0.4, abs=1e-6)
    assert value.active_negatives.item() == 1


def hand_case(normalise: str) -> LossValue:
    """One tuple (anchor, one selected, one not) and a pool of three, one of them mined; all in the plane."""
    angles = torch.deg2rad(torch.tensor([0.0, 60.0, 90.0, 30.0, -30.0, 180.0]))
    points = torch.stack([angles.cos(), angles.sin()], 1)
    pairs = label_batch(torch.tensor([[0, 1, 2]]), torch.tensor([[True, True, False]]))
    mined = torch.tensor([[True, False, False]])
    bank = BankPairs(points[None, 3:], negative=~mined, positive=mined)
    return contrastive_loss(points[None, :3], replace(pairs, bank=(bank,)), normalise=normalise)  # type: ignore[arg-type]


def test_the_loss_by_hand() -> None:
    # i = anchor (at 0): positives 60 (0.5) and mined 30 (0.866); negatives 90 (0), -30 (0.866), 180 (-1).
    # i = selected (60): positives 0 (0.5), mined 30 (0.866); negatives 90 (0.866), -30 (0), 180 (-0.5).
    root = math.sqrt(3) / 2
    value = hand_case("sum")
    assert value.loss.item() == pytest.approx(((root - 0.5 - root) + (root - 0.5 - root)) / 2, abs=1e-6)
    assert value.batch_positives.item() == 1
    assert value.active_negatives.item() == 1
    assert value.positive_similarity.item() == pytest.approx((0.5 + root) / 2, abs=1e-6)
    assert value.negative_similarity.item() == pytest.approx((root - 1 + root - 0.5) / 6, abs=1e-6)
    assert hand_case("mined").loss.item() == pytest.approx(2 * value.loss.item() / 3, abs=1e-6)
    assert hand_case("mean").loss.item() == pytest.approx(root - (0.5 + root) / 2, abs=1e-6)


def test_an_ignored_image_that_was_selected_stays_a_positive() -> None:
    everything = torch.ones(1, 2, dtype=torch.bool)
    pairs = label_batch(torch.tensor([[0, 1]]), everything, ignored=everything)
    assert pairs.positive[0].tolist() == [[False, True], [True, False]]
    assert not pairs.negative.any()


def test_a_tuple_alone_in_the_batch_without_bank_only_attracts() -> None:
    features = torch.tensor([[[1.0, 0.0], [0.6, 0.8]]])
    pairs = label_batch(torch.tensor([[0, 1]]), torch.tensor([[True, True]]))
    assert contrastive_loss(features, pairs).loss.item() == pytest.approx(-0.6)


def test_bank_rows_are_constants() -> None:
    case = Case(0, 2, 2, 5, 3)
    case.bank.requires_grad_()
    case.shared_bank.requires_grad_()
    features = case.features.clone().requires_grad_()
    contrastive_loss(features, case.pairs(), margin=-1.0).loss.backward()
    assert features.grad is not None
    assert case.bank.grad is None
    assert case.shared_bank.grad is None

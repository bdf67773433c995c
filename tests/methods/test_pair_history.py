"""Which pairs are confirmed by earlier rounds of a run."""

from pathlib import Path

import torch

from insclr.methods.pair_history import PairHistory

# Three images with two candidates each; the candidates' order differs from round to round.
FIRST = torch.tensor([[1, 2], [0, 2], [0, 1]])
LATER = torch.tensor([[2, 1], [2, 0], [1, 0]])


def test_pairs_are_confirmed_that_enough_of_the_earlier_rounds_mined(tmp_path: Path) -> None:
    PairHistory(tmp_path, 1).add(FIRST, torch.tensor([[True, False], [False, False], [True, True]]))
    PairHistory(tmp_path, 2).add(LATER, torch.tensor([[True, False], [False, False], [False, True]]))
    PairHistory(tmp_path, 3).add(LATER, torch.tensor([[False, False], [True, False], [False, True]]))
    # By hand, pairs and the rounds that mined them: 0-1 1, 0-2 2, 1-2 3, 2-0 1 2 3, 2-1 1; of three, two must have.
    found = PairHistory(tmp_path, 4).confirm(FIRST, torch.ones(3, 2, dtype=torch.bool), 0.5)
    assert found.tolist() == [[False, False], [False, False], [True, False]]
    # Of the first two rounds, one must have; a pair that is not mined now is not confirmed.
    now = torch.tensor([[True, True], [True, True], [False, True]])
    found = PairHistory(tmp_path, 3).confirm(FIRST, now, 0.5)
    assert found.tolist() == [[True, True], [False, False], [False, True]]


def test_the_first_round_confirms_all_and_a_resumed_round_reads_earlier_ones_only(tmp_path: Path) -> None:
    positive = torch.tensor([[True, False], [True, True], [False, False]])
    assert torch.equal(PairHistory(tmp_path, 1).confirm(FIRST, positive, 0.5), positive)
    PairHistory(tmp_path, 1).add(FIRST, torch.zeros(3, 2, dtype=torch.bool))
    assert torch.equal(PairHistory(tmp_path, 1).confirm(FIRST, positive, 0.5), positive)
    assert not PairHistory(tmp_path, 2).confirm(FIRST, positive, 0.5).any()

"""The guard: what is not learned from, and what is undone."""

import torch
from torch.nn import functional

from insclr.methods.method import Prepared
from insclr.mining.consistency import Consistency
from insclr.training.guard import Health, measure, unsafe, worse


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return functional.normalize(rows, dim=1)


def _measured(plain: torch.Tensor, view: torch.Tensor) -> Health:
    return measure(_unit(plain), lambda some: _unit(view)[some])


def test_a_collapse_is_noticed_and_progress_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(300, 32, generator=generator)
    view = plain + 0.3 * torch.randn(300, 32, generator=generator)
    start = _measured(plain, view)
    same = torch.ones(300, 32)
    assert "collapse" in worse(start, _measured(plain * 0.1 + same, view * 0.1 + same))
    noisy = torch.randn(300, 32, generator=generator)
    assert "own view" in worse(start, _measured(plain, view + 5 * noisy))
    pulled = plain + 2 * plain[torch.arange(300) // 5 * 5]  # pictures of five moved together
    pulled_view = view + 2 * plain[torch.arange(300) // 5 * 5]
    assert worse(start, _measured(pulled, pulled_view)) == ""


def test_nothing_is_learned_from_few_pairs_or_from_pairs_that_contradict_each_other() -> None:
    many, few = torch.ones(10, 4, dtype=torch.bool), torch.zeros(10, 4, dtype=torch.bool)
    assert unsafe(Prepared({}, positive=many)) == ""
    assert unsafe(Prepared({})) == ""  # a method that mines in every step
    assert "only 0.00 safe pairs" in unsafe(Prepared({}, positive=few))
    assert unsafe(Prepared({}, positive=many, consistency=Consistency(0.6, 0.8, 1000))) == ""
    assert "same pose or place" in unsafe(
        Prepared({}, positive=many, consistency=Consistency(0.1, 0.4, 1000))
    )

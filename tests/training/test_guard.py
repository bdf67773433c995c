"""The guard: what is not learned from, and what is undone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from insclr.methods.method import Prepared
from insclr.mining.candidates import Consistency, PairTrust
from insclr.tracking import read_metrics
from insclr.training.guard import Health, measure_health, why_unsafe, why_worse
from insclr.training.run import train


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return functional.normalize(rows, dim=1)


def _measured(plain: torch.Tensor, view: torch.Tensor) -> Health:
    network: Any = SimpleNamespace(describe_pooled=_unit)
    start: Any = SimpleNamespace(
        descriptors=_unit(plain), views=view[None], network=network, untrained_fc=False
    )
    health = measure_health(start)
    assert health is not None
    return health


def test_a_collapse_is_noticed_and_progress_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(300, 32, generator=generator)
    view = plain + 0.3 * torch.randn(300, 32, generator=generator)
    start = _measured(plain, view)
    same = torch.ones(300, 32)
    assert "collapse" in why_worse(start, _measured(plain * 0.1 + same, view * 0.1 + same))
    noisy = torch.randn(300, 32, generator=generator)
    assert "own view" in why_worse(start, _measured(plain, view + 5 * noisy))
    pulled = plain + 2 * plain[torch.arange(300) // 5 * 5]  # pictures of five moved together
    pulled_view = view + 2 * plain[torch.arange(300) // 5 * 5]
    assert why_worse(start, _measured(pulled, pulled_view)) == ""


def test_nothing_is_learned_from_few_pairs_or_from_pairs_that_contradict_each_other() -> None:
    many, few = torch.ones(10, 4, dtype=torch.bool), torch.zeros(10, 4, dtype=torch.bool)
    assert why_unsafe(Prepared({}, positive=many), PairTrust.UNTESTED) == ""
    assert why_unsafe(Prepared({}), PairTrust.UNTESTED) == ""  # a method that mines in every step
    assert "only 0.00 safe pairs" in why_unsafe(Prepared({}, positive=few), PairTrust.UNTESTED)
    assert (
        why_unsafe(Prepared({}, positive=many, consistency=Consistency(0.6, 0.8, 1000)), PairTrust.UNTESTED)
        == ""
    )
    assert "same pose or place" in why_unsafe(
        Prepared({}, positive=many, consistency=Consistency(0.1, 0.4, 1000)), PairTrust.UNTESTED
    )


def test_a_random_last_layer_has_nothing_to_be_compared_with(small_collection: Path, tmp_path: Path) -> None:
    changes = ("network.initial_fc=random", "network.initial_fc_weight=0", "network.dim=16", "workers=0")
    sizes = ("rounds.plain_size=64", "rounds.augmented_size=64", "rounds.cached_views=2", "rounds.steps=2")
    model = train(small_collection, tmp_path / "run", "fast", changes=(*changes, *sizes))
    assert model.network.dim == 16
    seen = [line["action"] for line in read_metrics(tmp_path / "run") if line.get("event") == "guard"]
    assert seen == ["ok"]  # of the second round: the first began with nothing learned


def test_pairs_of_few_images_are_unsafe() -> None:
    positive = torch.zeros(10, 5, dtype=torch.bool)
    positive[:3] = True  # 1.5 positives an image, all of them of three images
    assert "30% of the images" in why_unsafe(Prepared({}, positive=positive), PairTrust.UNTESTED)
    positive[3] = True
    assert not why_unsafe(Prepared({}, positive=positive), PairTrust.UNTESTED)


def test_few_pairs_are_learned_from_where_they_are_very_consistent() -> None:
    positive = torch.zeros(10, 5, dtype=torch.bool)
    positive[:3] = True

    def unsafe(value: float, images: int, trust: PairTrust = PairTrust.UNTESTED) -> str:
        return why_unsafe(Prepared({}, positive=positive, consistency=Consistency(value, 1.0, images)), trust)

    assert not unsafe(0.6, 500)
    assert unsafe(0.5, 500)
    assert unsafe(0.6, 100)  # so small a collection agrees by chance
    assert unsafe(0.5, 10_000)
    assert not why_unsafe(
        Prepared({}, positive=positive), PairTrust.TRUSTED
    )  # a kept round learned from such pairs

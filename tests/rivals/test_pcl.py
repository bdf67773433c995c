"""PCL: the prototype loss image by image, and when prototypes come."""

from pathlib import Path

import torch
from torch.nn.functional import normalize

from helpers.seen_collection import batch_of, learn, seen_collection
from insclr_rivals.pcl import Pcl, PclSettings, Prototypes, proto_nce

_SMALL = PclSettings(
    hidden=16, projected=8, queue=20, momentum=0.9, images_per_cluster=(12.0, 6.0), warmup_epochs=1
)


def test_the_prototype_loss_image_by_image() -> None:
    queries = torch.randn(5, 8)
    centres, looseness = normalize(torch.randn(3, 8), dim=1), torch.tensor([0.1, 0.2, 0.4])
    wanted = torch.tensor([0, 2, 1, 1, 0])
    expected = 0.0
    for query, cluster in zip(normalize(queries, dim=1), wanted.tolist(), strict=True):
        scores = torch.stack([query @ centre / phi for centre, phi in zip(centres, looseness, strict=True)])
        expected -= float(scores[cluster] - scores.exp().sum().log())
    found = proto_nce(queries, wanted, Prototypes(wanted, centres, looseness))
    torch.testing.assert_close(found, torch.tensor(expected / 5))


def test_prototypes_come_after_the_warm_up_and_stay_for_an_epoch(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, tuples=30)
    method = Pcl(_SMALL)
    method.prepare(start)
    assert "prototype_loss" not in method.loss(batch_of(method, start), 0, torch.Generator()).numbers
    method.begin_epoch(1, start.plain, start.ranks)
    found = method.state_dict()["prototypes"]
    assert [len(one["centres"]) for one in found] == [5, 10]
    assert all(one["looseness"].mean().item() - 0.2 < 1e-6 for one in found)
    own = method.loss(batch_of(method, start), 2, torch.Generator())
    # InfoNCE is what MoCo has, the mean over granularities comes on top.
    assert own.numbers["prototype_loss"] > 0
    other = Pcl(_SMALL)
    other.prepare(start)
    other.load_state_dict(method.state_dict(), {}, start.ranks)
    batch = batch_of(method, start, 3)
    one, two = (each.loss(batch, 3, torch.Generator()).loss for each in (method, other))
    assert torch.equal(one, two)


def test_images_come_closer_to_their_prototypes(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, tuples=30)
    settings = _SMALL.with_(warmup_epochs=0)
    method = Pcl(settings)
    method.prepare(start)
    before = method.loss(batch_of(method, start), 0, torch.Generator()).numbers["prototype_loss"]
    learn(method, settings, start)
    after = method.loss(batch_of(method, start), 60, torch.Generator()).numbers["prototype_loss"]
    assert after < before

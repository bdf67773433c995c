"""Mining on manifolds: what diffusion and distance disagree on."""

from pathlib import Path

import torch
from torch.nn.functional import normalize

from helpers.seen_collection import batch_of, learn, measured_map, seen_collection
from insclr_rivals.manifold_mining import ManifoldMining, ManifoldMiningSettings, nearest_both_ways

_SETTINGS = ManifoldMiningSettings(nearest=6, positives=1, negatives=2)


def _two_arcs() -> torch.Tensor:
    """Two instances, each seen along an arc of its own; where the arcs pass each other they are near."""
    along = torch.linspace(0, 2.0, 60)
    one = torch.stack([along.cos(), along.sin(), torch.full_like(along, 0.25)], dim=1)
    other = torch.stack([along.cos(), along.sin(), torch.full_like(along, -0.25)], dim=1)
    return normalize(torch.cat([one, other]), dim=1)


def test_diffusion_stays_on_the_arc_where_distance_jumps_over() -> None:
    rows = _two_arcs()
    found = nearest_both_ways(rows, 40)
    own = torch.arange(120) // 60
    right = {name: (own[ids] == own[:, None]).float().mean().item() for name, ids in found.items()}
    assert right["manifold"] > right["space"] + 0.1
    cosines = (rows @ rows.T).fill_diagonal_(-2)
    assert torch.equal(found["space"][5], cosines[5].sort(descending=True, stable=True).indices[:40])


def test_the_diffusion_is_the_published_one() -> None:
    """Alpha 0.99 on the graph of 50 mutual neighbours, from the image alone (Iscen et al. 2018)."""
    rows = normalize(torch.randn(520, 12, generator=torch.Generator().manual_seed(0)), dim=1).double()
    cosines = (rows @ rows.T).fill_diagonal_(-2)
    near = torch.zeros_like(cosines).scatter_(1, cosines.topk(50).indices, 1.0)
    graph = near * near.T * cosines.clamp(min=0) ** 3
    scale = graph.sum(1) ** -0.5
    solved = torch.linalg.inv(torch.eye(520).double() - 0.99 * scale[:, None] * graph * scale)
    found = nearest_both_ways(rows.float(), 40)["manifold"]
    solved.fill_diagonal_(-1)
    expected = solved.topk(40).indices
    same = [len(set(a) & set(b)) for a, b in zip(found.tolist(), expected.tolist(), strict=True)]
    assert sum(same) > 0.97 * 40 * 520  # twenty steps of conjugate gradients against the exact inverse


def test_what_the_two_disagree_on_is_what_a_tuple_holds(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, spread=0.9)
    method = ManifoldMining(_SETTINGS)
    assert method.prepare(start).criteria["nearest"] == 6
    found = nearest_both_ways(start.plain, 6)
    seen = 0
    for step in range(10):
        batch = batch_of(method, start, step)
        pairs = method.label(batch, step, torch.Generator())
        assert batch.ids.shape == (6, 4)
        assert pairs.query.tolist() == [[True, True, False, False]] * 6
        for t, (anchor, positive, *negatives) in enumerate(batch.ids.tolist()):
            space, manifold = set(found["space"][anchor].tolist()), set(found["manifold"][anchor].tolist())
            hard = manifold - space
            assert positive in (hard or manifold)
            seen += bool(hard)
            for place, image in enumerate(negatives, 4 * t + 2):
                assert image in space
                assert bool(pairs.negative[t, 0, place]) == (image not in manifold)
            for j, image in enumerate(batch.ids.flatten().tolist()):
                if image in manifold:
                    assert not pairs.negative[t, 0, j]
    assert seen > 10


def test_retrieval_gets_better_on_a_chain_of_views(tmp_path: Path) -> None:
    """As long as fewer images count as near than an instance has: beyond, its positives are strangers."""
    start = seen_collection(tmp_path, spread=0.6, chained=True, tuples=20)
    settings = _SETTINGS.with_(nearest=4)
    method = ManifoldMining(settings)
    method.prepare(start)
    before = measured_map(start)
    learn(method, settings, start, lr=3e-3)
    assert measured_map(start) > before


def test_a_handful_of_images(tmp_path: Path) -> None:
    start = seen_collection(tmp_path, instances=2, images=3, tuples=2)
    method = ManifoldMining(ManifoldMiningSettings())
    assert method.prepare(start).criteria["nearest"] == 3
    method.label(batch_of(method, start), 0, torch.Generator())

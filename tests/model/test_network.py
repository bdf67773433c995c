"""The network from image to unit descriptor."""

import torch
from torch import nn

from insclr.model.backbones import create_backbone
from insclr.model.network import DescriptorNetwork, create_network
from insclr.recipe import NetworkRecipe, load_recipe


def test_descriptors_are_unit_vectors_of_the_wanted_length() -> None:
    network = create_network(NetworkRecipe(dim=32, bias=True))
    photos = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        pooled, described = network.pool_features(photos), network(photos)
    assert pooled.shape == (3, 1280)
    assert described.shape == (3, 32)
    for rows in (pooled, described):
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))
    assert network.fc is not None
    expected = pooled @ network.fc.weight.T + network.fc.bias  # type: ignore[operator]
    torch.testing.assert_close(described, expected / expected.norm(dim=1, keepdim=True))


def test_frozen_batch_norm_keeps_its_statistics_in_training() -> None:
    network = create_network(NetworkRecipe(dim=8))
    photos = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)

    def statistics() -> list[torch.Tensor]:
        norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
        return [norm.running_mean.clone() for norm in norms]  # type: ignore[union-attr]

    start = statistics()
    network.train()(photos)
    assert all(torch.equal(a, b) for a, b in zip(start, statistics(), strict=True))
    network.frozen_batch_norm = False
    network.train()(photos)
    assert not all(torch.equal(a, b) for a, b in zip(start, statistics(), strict=True))


def test_a_descriptor_is_at_most_as_long_as_the_features() -> None:
    assert create_network(NetworkRecipe(dim=2048)).dim == 1280
    assert create_network(NetworkRecipe(dim=64)).dim == 64


def test_the_papers_head_has_no_bias_and_keeps_unrelated_images_apart() -> None:
    recipe = load_recipe("paper-instre").network.with_(backbone="efficientnet_lite0")
    paper = create_network(recipe)
    assert paper.fc is not None
    assert paper.fc.bias is None
    # Unrelated positive features, as GeM gives them: a random bias would drown them all in one direction.
    pooled = torch.nn.functional.normalize(torch.rand(300, paper.backbone.channels) ** 3, dim=1)
    biased = create_network(recipe.with_(bias=True))

    def spread(network: DescriptorNetwork) -> float:
        described = network.head(pooled).detach()
        return float((described @ described.T)[~torch.eye(300, dtype=torch.bool)].mean())

    assert spread(biased) > spread(paper) + 0.1


def test_the_papers_backbones_are_torchvisions() -> None:
    for name in ("paper-gldv2", "paper-instre", "released-gldv2", "released-instre"):
        backbone = create_backbone(load_recipe(name).network.backbone, pretrained=False)
        assert backbone.trunk.pretrained_cfg["tag"] == "tv_in1k"

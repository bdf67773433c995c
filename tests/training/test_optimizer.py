"""The optimizers of rounds: LARS by hand, and weight decay that leaves biases out."""

from typing import Any

import pytest
import torch
from torch import nn

from insclr.model.network import DescriptorNetwork, GeM
from insclr.recipe import RoundRecipe, load_recipe
from insclr.training.optimizer import Lars, create_optimizer


def test_lars_scales_the_rate_of_a_matrix_by_its_norm_over_that_of_the_gradient() -> None:
    matrix = nn.Parameter(torch.tensor([[3.0, 4.0]]))  # |w| = 5
    bias = nn.Parameter(torch.tensor([1.0]))
    matrix.grad, bias.grad = torch.tensor([[0.0, 2.0]]), torch.tensor([2.0])
    optimizer = Lars([{"params": [matrix, bias]}], lr=10.0, momentum=0.9, weight_decay=0.0)
    optimizer.step()
    # 0.001 * 5 / 2 * gradient (0, 2) = (0, 0.005), times the rate of 10.
    torch.testing.assert_close(matrix.detach(), torch.tensor([[3.0, 3.95]]))
    torch.testing.assert_close(bias.detach(), torch.tensor([-19.0]))


def test_lars_decays_matrices_alone() -> None:
    matrix, bias = nn.Parameter(torch.tensor([[3.0, 4.0]])), nn.Parameter(torch.tensor([1.0]))
    matrix.grad, bias.grad = torch.zeros(1, 2), torch.zeros(1)
    optimizer = Lars([{"params": [matrix, bias]}], lr=1.0, momentum=0.9, weight_decay=0.1)
    optimizer.step()
    # The gradient is 0.1 * w alone; 0.001 * |w| / |0.1 w| = 0.01: a step of 0.001 w.
    torch.testing.assert_close(matrix.detach(), 0.999 * torch.tensor([[3.0, 4.0]]))
    assert bias.item() == 1
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize("decay_biases", [True, False])
def test_biases_may_have_no_weight_decay(decay_biases: bool) -> None:
    backbone: Any = nn.Conv2d(3, 8, 1)
    backbone.channels = 8
    network = DescriptorNetwork(backbone, GeM(), dim=4, bias=True)
    recipe = RoundRecipe(weight_decay=0.5, decay_biases=decay_biases)
    optimizer = create_optimizer(recipe, network, [])
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: decays[id(p)] for name, p in network.named_parameters()}
    of_biases = 0.5 if decay_biases else 0.0
    assert found == {
        "backbone.weight": 0.5, "backbone.bias": of_biases, "fc.weight": 0.5, "fc.bias": of_biases
    }  # fmt: skip


_RATES = {"simclr": 0.3, "moco-v2": 0.03, "byol": 0.2, "pcl": 0.03, "swav": 0.03, "deepcluster": 0.15}


@pytest.mark.parametrize("name", _RATES)
def test_the_rivals_of_the_paper_train_all_layers_for_20_epochs_at_their_rates(name: str) -> None:
    recipe, ours = load_recipe(f"gldv2-{name}"), load_recipe("paper-gldv2")
    assert recipe.network == ours.network
    assert recipe.descriptor == ours.descriptor
    assert [each.augmented_size for each in recipe.rounds] == [224, 448]
    assert sum(each.epochs for each in recipe.rounds) == 20
    for each in recipe.rounds:
        assert (each.train, each.lr, each.method.name) == ("all", _RATES[name], name)
        assert each.optimizer == ("lars" if name in ("simclr", "byol", "swav") else "sgd")

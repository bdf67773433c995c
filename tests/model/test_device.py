"""Which device is taken, and how precise it is."""

import pytest
import torch

from insclr.errors import UserError
from insclr.model.device import describing_autocast, describing_batch, pick_device
from insclr.model.network import create_network
from insclr.recipe import NetworkRecipe


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two NVIDIA GPUs, as far as PyTorch says."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("gpus")
def test_auto_takes_the_gpu_that_is_there() -> None:
    assert pick_device() == pick_device("auto") == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("bare")
def test_auto_takes_the_cpu_where_there_is_nothing_else() -> None:
    assert pick_device("auto") == torch.device("cpu")


def test_auto_takes_apple_s_gpu_where_it_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto") == pick_device("mps") == torch.device("mps")


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", "no NVIDIA GPU"),
        ("cuda:1", "no NVIDIA GPU"),
        ("mps", "Apple"),
        ("gpu", "choose auto, cpu, cuda, cuda:N or mps"),
        ("cuda:", "choose auto"),
        ("cuda:-1", "choose auto"),
        ("CPU", "choose auto"),
        ("meta", "choose auto"),
        ("", "choose auto"),
    ],
)
def test_a_missing_or_misspelt_device_is_reported(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pick_device(name)


@pytest.mark.usefixtures("gpus")
def test_a_gpu_beyond_the_last_is_reported() -> None:
    with pytest.raises(UserError, match="cuda:0 to cuda:1"):
        pick_device("cuda:2")


def test_a_moved_network_leaves_nothing_behind() -> None:
    network = create_network(NetworkRecipe(dim=16), pretrained=False).to("meta")
    tensors = [*network.named_parameters(), *network.named_buffers()]
    assert len(tensors) > 200
    assert [name for name, tensor in tensors if tensor.device.type != "meta"] == []
    images = torch.empty(2, 3, 64, 64, dtype=torch.uint8, device="meta")
    assert network(images).device.type == "meta"  # nothing made on the way is left on the CPU


def test_a_cpu_describes_in_full_precision_and_a_gpu_in_half() -> None:
    with describing_autocast(torch.device("cpu")):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32
    assert describing_autocast(torch.device("cuda")).fast_dtype == torch.float16
    assert describing_batch(torch.device("cuda", 1)) > describing_batch(torch.device("cpu"))

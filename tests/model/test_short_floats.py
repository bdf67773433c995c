"""Short numbers: taken where the processor has them, or where a recipe asks for them."""

import pytest
import torch

from insclr.errors import UserError
from insclr.model import device
from insclr.model.device import computed_in, short_floats

_CPU, _GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("has_them", "expected"), [(True, torch.bfloat16), (False, None)])
def test_a_processor_without_short_numbers_is_left_alone(
    has_them: bool, expected: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_them}, raising=False)
    assert short_floats("auto", _CPU) == expected
    assert short_floats("auto", _GPU) is None
    assert short_floats("fp32", _CPU) is None
    assert short_floats("bf16", _CPU) == torch.bfloat16
    assert short_floats("fp16", _GPU) == torch.float16
    with pytest.raises(UserError, match="needs an NVIDIA GPU"):  # without scaling its gradients vanish
        short_floats("fp16", _CPU)


def test_a_torch_that_does_not_tell_is_taken_for_a_processor_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not device._multiplies_bf16()


@pytest.mark.parametrize("floats", [torch.bfloat16, None])
def test_the_network_computes_in_the_numbers_that_were_asked_for(floats: torch.dtype | None) -> None:
    layer = torch.nn.Conv2d(1, 1, 1)
    with computed_in(floats, _CPU):
        found = layer(torch.ones(1, 1, 2, 2))
    assert found.dtype == (floats or torch.float32)

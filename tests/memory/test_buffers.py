"""Buffers that are lent again as soon as nobody holds them."""

import torch

from insclr.memory.buffers import Buffers


def test_a_buffer_nobody_holds_is_lent_again() -> None:
    buffers = Buffers()
    place = buffers.lend((3, 4)).data_ptr()
    assert buffers.lend((4, 3)).data_ptr() == place


def test_a_buffer_is_not_lent_while_a_view_of_it_lives() -> None:
    buffers = Buffers()
    first = buffers.lend((3, 4))
    first.fill_(1)
    row = first[1]
    del first
    buffers.lend((3, 4)).fill_(2)
    assert row.tolist() == [1, 1, 1, 1]


def test_a_buffer_is_not_lent_while_autograd_needs_it() -> None:
    buffers = Buffers()
    weight = torch.ones(4, requires_grad=True)
    constant = buffers.lend((4,)).fill_(3)
    loss = (weight * constant).sum()
    del constant
    buffers.lend((4,)).fill_(5)
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3, 3, 3]


def test_any_number_of_buffers_can_be_held_at_once() -> None:
    buffers = Buffers()
    held = [buffers.lend((2,)).fill_(i) for i in range(10)]
    assert [tensor.tolist() for tensor in held] == [[i, i] for i in range(10)]

"""Tensors of all kinds become rows of bytes and come back."""

from __future__ import annotations

import pytest
import torch

from torchkiln.distributed import _packed
from torchkiln.distributed._packed import packed, unpacked

KINDS = [
    torch.nn.Parameter(torch.randn(3, 5)),
    torch.tensor([True, False, True]),
    torch.tensor(7),
    torch.randn(4).to(torch.bfloat16),
    torch.randn(2, dtype=torch.complex64),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.zeros(0),
    torch.randn(6, 4).t(),
    torch.tensor([float("nan"), -0.0]),
]


def test_every_bit_comes_back_into_tensors_of_any_layout():
    ((some, row),) = packed(KINDS)
    assert len(some) == len(KINDS)
    others = [torch.empty_like(tensor).detach() for tensor in KINDS]
    unpacked(row, others)
    for tensor, other in zip(KINDS, others, strict=True):
        assert other.stride() == tensor.stride()
        assert other.dtype == tensor.dtype
        assert bits(tensor) == bits(other)


def test_parameters_are_written_in_place_and_keep_their_gradients():
    parameter = torch.nn.Parameter(torch.zeros(3))
    ((_, row),) = packed([torch.ones(3)])
    unpacked(row, [parameter])
    assert parameter.tolist() == [1, 1, 1]
    assert parameter.requires_grad
    assert parameter.is_leaf


@pytest.mark.parametrize(("largest", "rows"), [(10**9, 1), (40, 2), (1, 4)])
def test_large_models_travel_in_several_rows(monkeypatch, largest, rows):
    monkeypatch.setattr(_packed, "_LARGEST", largest)
    tensors = [torch.full((4,), float(i)) for i in range(4)]
    found = list(packed(tensors))
    assert len(found) == rows
    assert [tensor.item() for some, _ in found for tensor in (one[0] for one in some)] == [
        0,
        1,
        2,
        3,
    ]


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist()

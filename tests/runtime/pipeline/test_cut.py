"""Parts of a step, run one after the other, do to the bit what the whole step does."""

from __future__ import annotations

import pytest
import torch
from _models import CASES
from _parts_in_turn import Recorded
from torch import nn

BLOCKS = {
    "mlp": ("layers.0", "layers.2"),
    "cnn": ("conv", "norm", "head"),
    "dropout": ("conv", "norm", "head"),
    "gcn": ("first", "second"),
    "gat": ("first", "second"),
    "lstm": ("recurrent", "head"),
    "transformer": ("layer.self_attn", "layer.norm1", "head"),
}


def assert_parts_do_the_same(module: nn.Module, case: str, ahead: int = 1, **options) -> Recorded:
    rng = torch.Generator().manual_seed(0)
    batches = [CASES[case].batch(rng, 1) for _ in range(4)]
    blocks = tuple((name,) for name in BLOCKS[case])
    recorded = Recorded(module, batches[0], blocks, **options)
    torch.manual_seed(1)
    expected = recorded.run_whole(batches)
    torch.manual_seed(1)
    recorded.run_parts(batches, ahead).assert_equal(expected)
    return recorded


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("case", BLOCKS)
def test_parts_do_what_the_whole_does(case, training):
    torch.manual_seed(0)
    assert_parts_do_the_same(CASES[case].make(), case, training=training)

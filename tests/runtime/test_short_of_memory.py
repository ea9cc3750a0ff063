"""Memory that is not there is an error that says what helps, and a program can go on after it."""

from __future__ import annotations

import errno
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchkiln
from torchkiln import Options, ShortOfMemory, inference_model, training_model
from torchkiln.core import DistributedError
from torchkiln.runtime._short_of_memory import _remedies, is_short_of_memory

# More bytes than a process can address, whatever the machine has.
FAR_TOO_MANY = 2**47


class Wide(nn.Module):
    """Makes so many numbers of each that it is given, and takes their mean."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        wide = (self.weight * x).unsqueeze(1).expand(len(x), self.times).exp()
        return torchkiln.identity_loss(wide, reduction="mean")


def make(training: bool = True, **options: Any) -> Any:
    module, chosen = Wide(FAR_TOO_MANY), Options(backend="capture", show_progress=False, **options)
    if not training:
        return inference_model(module, chosen)
    return training_model(module, chosen, torch.optim.SGD(module.parameters(), lr=0.1))


def test_a_step_without_memory_names_what_helps():
    with pytest.raises(ShortOfMemory, match="the training step ran out of memory") as info:
        make()(torch.zeros(1))
    text = str(info.value)
    assert "DefaultCPUAllocator" in text, "what torch said is kept"
    for remedy in (
        "smaller micro-batches, with gradient_accumulation",
        'half precision, Options(precision="bfloat16")',
        'recomputation, Options(recompute="auto")',
        "two stages in two processes, Options(pipeline=[...])",
        "`torchkiln fit`",
    ):
        assert remedy in text
    assert isinstance(info.value, MemoryError)
    assert info.value.found.startswith("the training step ran out of memory (")
    assert "What helps" not in info.value.found
    assert isinstance(info.value.__context__, RuntimeError)


def test_what_is_in_use_or_no_use_is_not_named():
    with pytest.raises(ShortOfMemory) as info:
        make(recompute="auto", precision="bfloat16")(torch.zeros(1))
    assert "recomputation" not in str(info.value)
    assert "half precision" not in str(info.value)
    with pytest.raises(ShortOfMemory, match="the inference step ran out of memory") as info:
        make(training=False)(torch.zeros(1))
    assert "recomputation" not in str(info.value)
    assert "gradient_accumulation" not in str(info.value)


def test_only_what_the_program_can_use_is_named():
    plain = Options(backend="eager")
    assert not any("recompute" in text or "pipeline" in text for text in _remedies(plain, True))
    shared = Options(backend="capture", num_processes=2, process_id=0)
    assert any("shard_optimizer=True" in text for text in _remedies(shared, True))
    sharded = shared.replace(shard_optimizer=True)
    assert not any("shard_optimizer" in text for text in _remedies(sharded, True))
    assert not any("pipeline=" in text for text in _remedies(sharded, True))


def test_memory_that_is_missing_while_a_program_is_built_counts():
    class Greedy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise MemoryError("forward asked for too much")

    program = inference_model(Greedy(), Options(backend="capture", show_progress=False))
    with pytest.raises(ShortOfMemory, match=r"building the program 'inference' ran out of memory"):
        program(torch.zeros(2))


@pytest.mark.parametrize(
    ("error", "is_short"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (RuntimeError("std::bad_alloc"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (DistributedError("rank 0 ended by RuntimeError: can't allocate memory"), False),
    ],
)
def test_other_errors_are_left_alone(error, is_short):
    assert is_short_of_memory(error) is is_short


def test_the_error_survives_a_pickle():
    error = ShortOfMemory("all of it", "part of it")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.found) == (str(error), error.found)

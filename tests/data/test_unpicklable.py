"""The part of a value that cannot be pickled is found and named."""

from __future__ import annotations

import threading

import torch
from torch import nn

from torchkiln.data import find_unpicklable


class Raising:
    def __getstate__(self) -> object:
        raise OSError("file is open")


def test_what_can_be_pickled_has_no_such_part():
    assert find_unpicklable({"x": [torch.ones(2), nn.Linear(1, 1)]}, "batch") is None


def test_the_innermost_part_is_named_with_its_type_and_the_reason():
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].notes = {"source": (1, Raising())}
    found = find_unpicklable(model, "model")
    assert found is not None
    assert "._modules['0'].notes['source'][1], of type " in found
    assert found.endswith("Raising (OSError: file is open)")


def test_locks_functions_and_endless_structures():
    assert "value[0], of type _thread.lock" in str(find_unpicklable([threading.Lock()], "value"))
    assert "value['f'], of type builtins.function" in str(
        find_unpicklable({"f": lambda: None}, "value")
    )
    endless: list[object] = [threading.Lock()]
    endless.insert(0, endless)
    assert find_unpicklable(endless, "value") is not None

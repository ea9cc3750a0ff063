"""Caches of `transformers` go through programs; here in a package of the same form."""

import sys
from types import ModuleType

import pytest
import torch

from torchkiln import Options, inference_model
from torchkiln.core import Extends, _extensions, load_extensions
from torchkiln.data import flatten, rebuild, register_container

LIBRARY, OURS = "transformers.cache_utils", "torchkiln.data._transformers_caches"
SOURCE = """
class Layer:
    def __init__(self):
        self.keys = self.values = None
        self.is_initialized = False

class Cache:
    def __init__(self):
        self.layers, self.layer_class, self.config = [], Layer, {"heads": 2}
"""


@pytest.fixture
def library(monkeypatch):
    """A stand-in for the library, which the extension of the registry finds."""
    module = ModuleType(LIBRARY)
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, LIBRARY.partition(".")[0], ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, LIBRARY, module)
    monkeypatch.setitem(_extensions._waiting, Extends.CONTAINERS, {LIBRARY: OURS})
    sys.modules.pop(OURS, None)
    load_extensions(Extends.CONTAINERS)
    yield module
    register_container(module.Cache, None)
    sys.modules.pop(OURS)


def make_cache(library, *tensors):
    cache = library.Cache()
    for keys in tensors:
        layer = library.Layer()
        layer.keys, layer.values, layer.is_initialized = keys, keys + 1, True
        cache.layers.append(layer)
    return cache


def test_tensors_of_all_layers_are_taken_out_and_put_into_a_copy(library):
    keys = torch.arange(3.0)
    cache = make_cache(library, keys, keys * 2)
    tensors, node = flatten(cache)
    assert [tensor.tolist() for tensor in tensors] == [[0, 1, 2], [1, 2, 3], [0, 2, 4], [1, 3, 5]]
    assert node.names[:2] == ("layers[0].keys", "layers[0].values")
    assert node.constants["layers[1].is_initialized"] is True
    assert node.constants["config['heads']"] == 2
    copy = rebuild(node, [-tensor for tensor in tensors])
    assert copy.layers[1].keys.tolist() == [0, -2, -4]
    assert cache.layers[1].keys.tolist() == [0, 2, 4]
    assert copy.layer_class is library.Layer


def test_every_call_of_a_program_returns_a_cache_of_its_own(library):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            keys = self.layer(x)
            return {"logits": keys.sum(), "past_key_values": make_cache(library, keys)}

    model = Model()
    program = inference_model(model, Options(backend="capture", show_progress=False))
    caches = []
    for number in range(2):
        x = torch.full((2, 3), float(number))
        caches.append(program(x)["past_key_values"])
        torch.testing.assert_close(caches[-1].layers[0].keys, model.layer(x).detach())
    assert not torch.equal(caches[0].layers[0].keys, caches[1].layers[0].keys)

"""Arguments and results: structure, memory, dtypes."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _models import MLP, labels, vectors
from _parity import assert_like_eager
from torch import Tensor, nn

from torchkiln.core import ShapeChanged
from torchkiln.runtime import inference_model, training_model


class Point(NamedTuple):
    x: Tensor
    scale: float


class Structured(MLP):
    def forward(self, inputs, y=None, *rest, factor=1, flag: bool = True, **more):
        point, (first, second) = inputs["point"], inputs["pair"]
        out = self.layers(point.x * point.scale + first + second)
        if flag:
            out = out * factor
        for value in (*rest, *more.values()):
            out = out + value
        loss = F.cross_entropy(out, y)
        return OrderedDict(
            scores=out, point=Point(out.argmax(-1), 2.0), rest=[None, "name", {"n": 3}], loss=loss
        )


def test_nested_inputs_outputs_constants_and_keywords(options):
    inputs = {"point": Point(vectors(), 0.5), "pair": [vectors(), (vectors() + 1)]}
    assert_like_eager(
        Structured(),
        inputs | {"pair": tuple(inputs["pair"])},
        labels(),
        torch.ones(4, 3),
        options=options,
        factor=2,
        extra=torch.full((4, 3), 0.5),
    )


def test_dictionary_order_of_a_later_call_does_not_matter(options):
    program = inference_model(Structured(), options)
    inputs = {"point": Point(vectors(), 0.5), "pair": (vectors(), vectors() + 1)}
    first = program(inputs, labels())["scores"]
    again = program(dict(reversed(inputs.items())), labels())["scores"]
    assert torch.equal(first, again)


def test_default_tensor_argument_is_an_ordinary_input(options):
    class Default(MLP):
        def forward(self, x, y, shift=torch.ones(4, 3)):  # noqa: B008 - the case under test
            out = self.layers(x) + shift
            return out, F.cross_entropy(out, y)

    assert_like_eager(Default(), vectors(), labels(), options=options)


class Scaled(nn.Module):
    def forward(self, x, scale=torch.full((2, 1), 2.0), shift=0.5):  # noqa: B008 - the case
        return x * scale + shift


def test_a_default_tensor_may_be_given_in_a_later_call(options):
    program, x, scale = inference_model(Scaled(), options), torch.ones(2, 3), torch.rand(2, 1)
    for arguments, keywords in [((x,), {}), ((x, scale), {}), ((x,), {"scale": scale}), ((x,), {})]:
        assert torch.equal(program(*arguments, **keywords), Scaled()(*arguments, **keywords))
    with pytest.raises(ShapeChanged, match="Shape mismatch for scale"):
        program(x, torch.ones(1, 1))
    with pytest.raises(ShapeChanged, match="Keys mismatch: Unexpected arguments: shift"):
        program(x, shift=1.0)


def test_a_default_tensor_may_be_left_out_in_a_later_call(options):
    program, x, scale = inference_model(Scaled(), options), torch.ones(2, 3), torch.rand(2, 1)
    assert torch.equal(program(x, scale), Scaled()(x, scale))
    assert torch.equal(program(x), Scaled()(x))


def test_the_same_argument_by_position_or_by_keyword(options):
    program = inference_model(MLP(), options)
    by_position = program(vectors(), labels())
    by_keyword = program(y=labels(), x=vectors())
    assert torch.equal(by_position[0], by_keyword[0])


def test_mutated_inputs_are_seen_by_the_caller(options):
    class Mutating(MLP):
        def forward(self, x, memory, y):
            memory += x.mean()
            memory[0] = 7.0
            out = self.layers(x) + memory.sum()
            return out, F.cross_entropy(out, y)

    assert_like_eager(Mutating(), vectors(), torch.zeros(4), labels(), options=options)


def test_mutated_input_that_is_not_contiguous_is_seen_by_the_caller(options):
    class Mutating(MLP):
        def forward(self, x, memory):
            memory += x
            return self.layers(memory)

    memory = torch.zeros(6, 4).t()
    program = inference_model(Mutating(), options)
    with pytest.warns(UserWarning, match="not contiguous"):
        program(vectors(), memory)
    assert torch.equal(memory, vectors())


def test_outputs_share_no_memory_with_anything(options):
    class Aliases(MLP):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(3))

        def forward(self, x, y):
            self.state += 1
            out = self.layers(x)
            weight = self.layers[2].weight
            loss = F.cross_entropy(out, y)
            return x, x[1:], weight, weight.t(), self.state, self.state[:1], out, out, out[0], loss

    module = Aliases()
    program = assert_like_eager(module, vectors(), labels(), options=options)
    x = vectors()
    outputs = program(x, labels())
    for output in outputs:
        output.zero_()
    assert torch.equal(x, vectors())
    assert module.state[0] > 0
    pointers = {output.untyped_storage().data_ptr() for output in outputs}
    assert len(pointers) == len(outputs)


def test_outputs_of_an_earlier_call_keep_their_values(options):
    program = training_model(MLP(), options)
    first, _ = program(vectors(), labels())
    kept = first.clone()
    program(vectors() + 1, labels())
    assert torch.equal(first, kept)


def test_forward_without_tensor_arguments(options):
    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self):
            return F.mse_loss(self.weight, torch.zeros(3))

    assert_like_eager(Alone(), options=options)


def test_inputs_of_every_dtype_keep_it(options):
    class Echo(nn.Module):
        def forward(self, *tensors):
            return [tensor + 1 if tensor.dtype != torch.bool else ~tensor for tensor in tensors]

    dtypes = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float64]
    dtypes += [torch.complex64]
    tensors = [torch.ones(2).to(dtype) for dtype in dtypes]
    outputs = inference_model(Echo(), options)(*tensors)
    assert [output.dtype for output in outputs] == dtypes


def test_constants_that_are_not_equal_to_themselves(options):
    class Filling(MLP):
        def forward(self, x, y, fill):
            out = self.layers(x)
            return torch.full((2,), fill), F.cross_entropy(out, y)

    program = training_model(Filling(), options)
    program(vectors(), labels(), float("nan"))
    assert program(vectors(), labels(), float("nan"))[0].isnan().all()


def test_lazily_conjugated_inputs(options):
    class Waves(nn.Module):
        def forward(self, wave, phase):
            return wave * 2, phase + 1

    wave = torch.tensor([1 + 2j, 3 - 1j])
    program = inference_model(Waves(), options)
    got = program(wave.conj(), wave.conj().imag)
    assert torch.equal(got[0], torch.tensor([2 - 4j, 6 + 2j]))
    assert torch.equal(got[1], torch.tensor([-1.0, 2.0]))

"""The life of a program: compiling, counting, hooks, progress, looking inside."""

from __future__ import annotations

import threading

import pytest
import torch
from _linear_loss import CAPTURE, LinearLoss, batch, plain
from _models import MLP, labels, vectors
from torch import nn

from torchkiln.core import DynamicShapeError, Options, add_listener
from torchkiln.runtime import add_compile_hook, inference_model, training_model


def test_compile_ahead_of_time_runs_nothing(options):
    module = MLP()
    before = module.layers[0].weight.clone()
    program = training_model(module, options)
    assert not program.is_compiled
    program.compile(vectors(), labels())
    assert program.is_compiled
    assert program.compilation_time > 0
    assert torch.equal(module.layers[0].weight, before)
    program(vectors(), labels())
    assert not torch.equal(module.layers[0].weight, before)


def test_captures_and_compiles_are_counted():
    program = training_model(MLP(), Options(backend="capture", show_progress=False))
    assert (program.num_compiles, program.num_captures) == (0, 0)
    for _ in range(3):
        program(vectors(), labels())
    assert (program.num_compiles, program.num_captures) == (1, 1)


def test_destroyed_program_compiles_for_another_shape(options):
    program = training_model(MLP(), options)
    program(vectors(4), labels(4))
    program.destroy()
    assert not program.is_compiled
    assert program(vectors(7), labels(7))[0].shape == (7, 3)


def test_programs_of_one_module_may_have_different_shapes(options):
    module = MLP()
    programs = [inference_model(module, options) for _ in range(2)]
    shapes = [
        program(vectors(n), labels(n))[0].shape for program, n in zip(programs, (2, 5), strict=True)
    ]
    assert shapes == [(2, 3), (5, 3)]


def test_hooks_run_around_every_build_and_can_be_removed(options):
    calls = []
    remove = add_compile_hook(
        before=lambda: calls.append("before"), after=lambda: calls.append("after")
    )
    program = training_model(MLP(), options)
    program(vectors(), labels())
    program(vectors(), labels())
    assert calls == ["before", "after"]
    remove()
    training_model(MLP(), options)(vectors(), labels())
    assert calls == ["before", "after"]


def test_hooks_run_around_a_failed_build():
    class Dynamic(nn.Module):
        def forward(self, x):
            return x[x > 0]

    calls = []
    remove = add_compile_hook(after=lambda: calls.append("after"))
    with pytest.raises(DynamicShapeError):
        inference_model(Dynamic(), Options(backend="capture", show_progress=False))(vectors())
    remove()
    assert calls == ["after"]


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("show", [True, False])
def test_progress_bar_is_named_and_can_be_switched_off(show, capsys):
    program = training_model(MLP(), Options(backend="capture", show_progress=show))
    program(vectors(), labels())
    shown = capsys.readouterr().err
    assert ("Graph compilation: 100%" in shown) is show


def test_phases_are_reported_to_listeners():
    spans = []
    remove = add_listener(spans.append)
    program = training_model(MLP(), Options(backend="capture", show_progress=False))
    program(vectors(), labels())
    remove()
    assert ("compile", "capture") in {(span.channel, span.label) for span in spans}
    assert ("program", "training step") in {(span.channel, span.label) for span in spans}


def test_random_state_can_be_read_and_set(options):
    program = training_model(MLP(), options)
    state = program.rng_state
    first = torch.rand(3)
    program.rng_state = state
    assert torch.equal(torch.rand(3), first)


def test_tensor_names_cover_inputs_weights_and_gradients(options):
    program = training_model(MLP(), options)
    program.compile(vectors(), labels())
    names = program.tensor_names()
    assert {"input/x", "input/y", "layers.0.weight", "loss"} <= set(names)
    assert {"Gradient___layers.2.bias", "UpdatedVar___layers.2.bias"} <= set(names)


def test_repr_says_kind_state_and_module(options):
    program = inference_model(MLP(), options)
    assert repr(program).startswith("Program(inference, not compiled, MLP(")
    program(vectors(), labels())
    assert repr(program).startswith("Program(inference, compiled, MLP(")


def test_default_optimizer_is_plain_sgd():
    program = training_model(MLP(), Options(backend="capture"))
    assert isinstance(program.optimizer, torch.optim.SGD)
    assert program.optimizer.param_groups[0]["lr"] == 0.01
    assert program.training
    assert inference_model(MLP()).optimizer is None


def test_failed_forward_of_the_eager_backend_leaves_the_module_whole():
    class Failing(MLP):
        def forward(self, x, y):
            raise RuntimeError("mine")

    module = Failing()
    weight = module.layers[0].weight
    with pytest.raises(RuntimeError, match="mine"):
        training_model(module, Options(backend="eager"))(vectors(), labels())
    assert module.layers[0].weight is weight


def test_programs_may_compile_in_several_threads():
    programs = [training_model(LinearLoss(plain), CAPTURE) for _ in range(4)]
    errors = []

    def compile_one(program):
        try:
            program(*batch())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=compile_one, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    torch.manual_seed(0)  # still torch's own

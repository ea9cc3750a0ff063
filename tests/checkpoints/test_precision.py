"""float32 state of half-precision weights: through saving, loading, resuming and plain steps."""

from __future__ import annotations

import copy
import io
import json
import pickle
import zipfile

import pytest
import torch
from _half import OPTIMIZERS, batch, regression
from torch import nn

from torchkiln.checkpoints import (
    CheckpointStore,
    keep_state_precision,
    load_optimizer_tensors,
    optimizer_tensors,
)
from torchkiln.core import ExecutableError, OptimizerError, Options
from torchkiln.runtime import LAMB, load, training_model
from torchkiln.runtime.optim._recipe import read_recipe
from torchkiln.runtime.optim._update_rules import LAMBRule

HALF = torch.float16
WITH_STATE = [name for name in OPTIMIZERS if name != "sgd"]

pytestmark = pytest.mark.filterwarnings("ignore:this CPU has no")


def start(name, backend="eager"):
    module = regression(HALF)
    optimizer = OPTIMIZERS[name](module.parameters())
    return module, optimizer, new_program(module, optimizer, backend)


def new_program(module, optimizer, backend="eager"):
    return training_model(module, Options(backend=backend, show_progress=False), optimizer)


def run(program, first, last):
    return [program(*batch(HALF, seed)).item() for seed in range(first, last)]


def state_of(module, optimizer):
    return [
        {key: value.clone() for key, value in optimizer.state[param].items()}
        for param in module.parameters()
    ]


def assert_same_bits(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            assert one[key].dtype == value.dtype == torch.float32
            assert torch.equal(one[key], value), key


def through_bytes(values):
    buffer = io.BytesIO()
    torch.save(values, buffer)
    buffer.seek(0)
    return torch.load(buffer)


@pytest.mark.parametrize("name", WITH_STATE)
def test_checkpoints_resume_with_the_same_bits(name, tmp_path):
    module, optimizer, program = start(name)
    run(program, 0, 3)
    tensors, facts = optimizer_tensors(optimizer)
    weights = {f"model/{key}": value for key, value in module.state_dict().items()}
    CheckpointStore(tmp_path).save({**tensors, **weights}, facts)
    kept = state_of(module, optimizer)
    expected = run(program, 3, 6)

    loaded, facts = CheckpointStore(tmp_path).load()
    other = regression(HALF)
    other.load_state_dict({k[6:]: v for k, v in loaded.items() if k.startswith("model/")})
    # Before there is a program: the order must not matter.
    other_optimizer = OPTIMIZERS[name](other.parameters())
    load_optimizer_tensors(other_optimizer, loaded, facts)
    assert_same_bits(state_of(other, other_optimizer), kept)
    assert run(new_program(other, other_optimizer), 3, 6) == expected


@pytest.mark.parametrize("name", WITH_STATE)
def test_state_dicts_of_torch_resume_with_the_same_bits(name):
    module, optimizer, program = start(name)
    run(program, 0, 3)
    saved = through_bytes([module.state_dict(), optimizer.state_dict()])
    kept = state_of(module, optimizer)
    expected = run(program, 3, 6)

    other, other_optimizer, other_program = start(name)
    other.load_state_dict(saved[0])
    other_optimizer.load_state_dict(saved[1])
    assert_same_bits(state_of(other, other_optimizer), kept)
    assert run(other_program, 3, 6) == expected


def test_a_program_that_ran_goes_back_to_a_loaded_state(options):
    module, optimizer, program = start("adamw", options.backend.value)
    run(program, 0, 2)
    saved = through_bytes([module.state_dict(), optimizer.state_dict()])
    expected = run(program, 2, 5)
    for _ in range(2):
        module.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        assert run(program, 2, 5) == expected


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), None])
def test_lamb_loads_float32_state_before_any_program(copier):
    module, optimizer, program = start("lamb")
    run(program, 0, 3)
    kept, saved = state_of(module, optimizer), through_bytes(optimizer.state_dict())
    other = LAMB(regression(HALF).parameters(), lr=0.01)
    if copier is not None:
        other = copier(other)
    other.load_state_dict(saved)
    assert_same_bits(list(other.state.values()), kept)


def test_copies_of_module_and_optimizer_go_on_with_the_same_bits():
    module, optimizer, program = start("adam")
    run(program, 0, 3)
    twin, twin_optimizer = copy.deepcopy((module, optimizer))
    assert run(new_program(twin, twin_optimizer), 3, 6) == run(program, 3, 6)


def test_state_that_torch_cut_before_there_was_a_program_is_warned_about():
    _, optimizer, program = start("adam")
    run(program, 0, 3)
    saved = optimizer.state_dict()
    other = regression(HALF)
    late = OPTIMIZERS["adam"](other.parameters())
    late.load_state_dict(saved)
    with pytest.warns(UserWarning, match=r"exp_avg \(torch.float16\).*load_state_dict"):
        run(new_program(other, late), 0, 1)
    assert late.state[other.layers[0].weight]["exp_avg_sq"].dtype == torch.float32


def test_half_state_of_plain_steps_is_widened_with_a_warning():
    module = regression(HALF)
    optimizer = OPTIMIZERS["momentum"](module.parameters())
    module(*batch(HALF)).backward()
    optimizer.step()
    before = [optimizer.state[p]["momentum_buffer"].clone() for p in module.parameters()]
    program = new_program(module, optimizer)
    with pytest.warns(UserWarning, match=r"momentum_buffer \(torch.float16\)"):
        program.compile(*batch(HALF))
    for param, value in zip(module.parameters(), before, strict=True):
        buffer = optimizer.state[param]["momentum_buffer"]
        assert buffer.dtype == torch.float32
        assert torch.equal(buffer, value.float())


def test_checkpoints_of_older_versions_are_widened_with_a_warning():
    _, optimizer, program = start("adamw")
    run(program, 0, 2)
    tensors, facts = optimizer_tensors(optimizer)
    old = {name: t if name.endswith("step") else t.half() for name, t in tensors.items()}
    other, other_optimizer, other_program = start("adamw")
    load_optimizer_tensors(other_optimizer, old, facts)
    with pytest.warns(UserWarning, match="half precision"):
        run(other_program, 0, 1)
    assert other_optimizer.state[other.layers[0].weight]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("name", ["adam", "centered"])
def test_plain_steps_that_torch_cannot_do_are_refused_before_they_begin(name):
    module, optimizer, program = start(name)
    run(program, 0, 2)
    kept = state_of(module, optimizer)
    module(*batch(HALF)).backward()
    with pytest.raises(OptimizerError, match=r"step\(\) of torch cannot update torch.float16"):
        optimizer.step()
    assert_same_bits(state_of(module, optimizer), kept)
    run(program, 2, 3)
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}


@pytest.mark.parametrize("name", ["momentum", "rmsprop", "lamb"])
def test_other_plain_steps_go_on_in_float32(name):
    module, optimizer, program = start(name)
    run(program, 0, 2)
    module(*batch(HALF)).backward()
    optimizer.step()
    for param in module.parameters():
        assert param.dtype == HALF
        assert all(value.dtype == torch.float32 for value in optimizer.state[param].values())
    run(program, 2, 3)


class MaskedAdam(torch.optim.Adam):
    """Keeps more than torch's Adam, in dtypes of its own."""

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["mask"] = torch.ones_like(param, dtype=torch.bool)
                self.state[param]["average"] = torch.ones_like(param, dtype=torch.float64)
        return


def test_state_of_a_subclass_is_its_own_business():
    module = regression(torch.float32)
    optimizer = MaskedAdam(module.parameters())
    keep_state_precision(optimizer)
    module(*batch(torch.float32)).backward()
    optimizer.step()
    optimizer.step()


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_of_lamb_keep_its_bias_correction(copier):
    module = regression(torch.float32)
    kept = copier(LAMB(module.parameters(), bias_correction=False))
    assert read_recipe(kept).rules == (LAMBRule(bias_correction=False),)
    assert kept.bias_correction is False


def test_plain_lamb_keeps_float32_moments():
    module = regression(HALF)
    optimizer = LAMB(module.parameters())
    module(*batch(HALF)).backward()
    optimizer.step()
    assert {v.dtype for s in optimizer.state.values() for v in s.values()} == {torch.float32}


def test_what_another_hook_loads_instead_is_not_overwritten():
    module, optimizer, program = start("momentum")
    run(program, 0, 2)
    saved = optimizer.state_dict()

    def zeros(_, state_dict):
        state = {
            n: {k: torch.zeros_like(v) for k, v in e.items()} for n, e in saved["state"].items()
        }
        return {**state_dict, "state": state}

    optimizer.register_load_state_dict_pre_hook(zeros)
    optimizer.load_state_dict(saved)
    for param in module.parameters():
        assert not optimizer.state[param]["momentum_buffer"].any()


def test_float32_parameters_load_as_in_torch():
    param = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([param])
    new_program(nn.ParameterList([param]), optimizer)
    param.grad = torch.ones(3)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].double()
    optimizer.load_state_dict(saved)
    assert optimizer.state[param]["exp_avg"].dtype == torch.float32
    optimizer.step()


@pytest.mark.slow
@pytest.mark.inductor
def test_an_exported_program_keeps_float32_state_and_older_ones_are_refused(tmp_path):
    module, optimizer, program = start("adamw", "inductor")
    run(program, 0, 2)
    path = tmp_path / "program.kiln"
    program.export(path)
    kept = state_of(module, optimizer)
    expected = run(program, 2, 4)

    other = regression(HALF)
    other_optimizer = OPTIMIZERS["adamw"](other.parameters())
    loaded = load(path, other, other_optimizer)
    assert_same_bits(state_of(other, other_optimizer), kept)
    assert run(loaded, 2, 4) == expected
    with pytest.raises(ExecutableError, match="an optimiser like the one"):
        load(path, other, torch.optim.SGD(other.parameters(), lr=0.1))

    # Versions that wrote no dtypes compiled the update of half weights with half moments.
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(parts["program.json"])
    del header["state"]
    parts["program.json"] = json.dumps(header).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(ExecutableError, match=r"in torch.float16, here it is torch.float32"):
        load(path, other, other_optimizer)

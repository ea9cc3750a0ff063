"""Programs that a hostile reviewer wrote: each once trained something else than it said."""

import threading

import pytest
import torch
from torch import nn

from torchkiln import Options, training_model
from torchkiln.core import CaptureError, OptimizerError

CAPTURE = Options(backend="capture", show_progress=False)


def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, generator=generator), torch.randn(8, 1, generator=generator)


class Net(nn.Module):
    """A linear model whose outputs are chosen by a function of (mse per sample, weights)."""

    def __init__(self, outputs, reduction="mean"):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.outputs = outputs
        self.reduction = reduction

    def forward(self, x, y):
        loss = nn.functional.mse_loss(self.layer(x), y, reduction=self.reduction)
        return self.outputs(loss, self.layer.weight)


def plain(loss, weight):
    return loss


def test_a_mean_of_a_returned_vector_of_losses_is_what_is_trained():
    module = Net(lambda per, weight: {"loss": per.mean(), "per": per}, reduction="none")
    reference = Net(plain)
    reference.load_state_dict(module.state_dict())
    training_model(module, CAPTURE, torch.optim.SGD(module.parameters(), lr=0.1))(*batch())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(*batch()).backward()
    optimizer.step()
    torch.testing.assert_close(module.layer.weight, reference.layer.weight)


def test_returning_a_loss_and_a_total_made_of_it_warns_which_one_counts():
    module = Net(lambda mse, weight: {"loss": mse + weight.square().sum(), "mse": mse})
    program = training_model(module, CAPTURE)
    with pytest.warns(UserWarning, match="identity_loss"):
        program(*batch())


def test_a_detached_component_beside_the_total_trains_the_total():
    module = Net(lambda mse, weight: (mse + weight.square().sum(), mse.detach()))
    reference = Net(lambda mse, weight: mse + weight.square().sum())
    reference.load_state_dict(module.state_dict())
    training_model(module, CAPTURE, torch.optim.SGD(module.parameters(), lr=0.1))(*batch())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(*batch()).backward()
    optimizer.step()
    torch.testing.assert_close(module.layer.weight, reference.layer.weight)


@pytest.mark.parametrize("when", ["before the first call", "after it"])
def test_loading_optimiser_state_brings_its_learning_rate(when):
    module = Net(plain)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    stored = torch.optim.SGD(module.parameters(), lr=0.0).state_dict()
    program = training_model(module, CAPTURE, optimizer)
    if when == "after it":
        program(*batch())
    optimizer.load_state_dict(stored)
    before = module.layer.weight.detach().clone()
    program(*batch())
    assert torch.equal(module.layer.weight, before)


def test_numbers_and_structure_are_read_together_when_compiling():
    module, reference = Net(plain), Net(plain)
    reference.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    program = training_model(module, CAPTURE, optimizer)
    optimizer.param_groups[0]["momentum"] = 0.9
    eager = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        program(*batch())
        eager.zero_grad()
        reference(*batch()).backward()
        eager.step()
    torch.testing.assert_close(module.layer.weight, reference.layer.weight)


@pytest.mark.parametrize(
    "hook",
    [
        lambda module, optimizer: module.layer.weight.register_hook(lambda grad: grad * 0),
        lambda module, optimizer: optimizer.register_step_post_hook(lambda *args: None),
    ],
    ids=["gradient", "step"],
)
def test_hooks_that_a_program_does_not_run_are_named(hook):
    module = Net(plain)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    hook(module, optimizer)
    with pytest.warns(UserWarning, match="does not execute"):
        training_model(module, CAPTURE, optimizer)(*batch())


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: [t]], ids=["tensor", "list"])
def test_a_trainable_plain_attribute_is_refused(wrap):
    module = Net(plain)
    extra = torch.ones(1, requires_grad=True)
    module.extra = wrap(extra)
    optimizer = torch.optim.SGD([*module.parameters(), extra], lr=0.1)
    with pytest.raises(CaptureError, match=r"nn\.Parameter"):
        training_model(module, CAPTURE, optimizer)(*batch())


def test_complex_parameters_are_refused_where_the_maths_differs():
    module = Net(plain)
    module.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))
    with pytest.raises(OptimizerError, match="complex"):
        training_model(module, CAPTURE, torch.optim.Adam(module.parameters()))(*batch())


def test_state_that_was_removed_for_one_parameter_starts_afresh():
    module = Net(plain)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    program = training_model(module, CAPTURE, optimizer)
    program(*batch())
    del optimizer.state[module.layer.bias]
    with pytest.raises(OptimizerError, match="step counts"):
        program(*batch())  # one parameter is new, the other is not: compile for that
    program.destroy()
    program(*batch())
    assert len(optimizer.state) == 2


def test_an_optimiser_that_was_replaced_keeps_its_own_state():
    module = Net(plain)
    first = torch.optim.Adam(module.parameters())
    program = training_model(module, CAPTURE, first)
    program(*batch())
    second = torch.optim.Adam(module.parameters(), lr=0.5)
    program.set_optimizer(second)
    kept = first.state[module.layer.weight]["exp_avg"].clone()
    program(*batch())
    assert torch.equal(first.state[module.layer.weight]["exp_avg"], kept)
    assert not torch.equal(second.state[module.layer.weight]["exp_avg"], kept)


def test_a_group_added_later_is_refused_and_compiled_after_destroy():
    module = Net(plain)
    optimizer = torch.optim.SGD([module.layer.weight], lr=0.1)
    program = training_model(module, CAPTURE, optimizer)
    program(*batch())
    optimizer.add_param_group({"params": [module.layer.bias], "lr": 0.5})
    with pytest.raises(OptimizerError, match=r"destroy\(\)"):
        program(*batch())
    program.destroy()
    before = module.layer.bias.detach().clone()
    program(*batch())
    assert not torch.equal(module.layer.bias, before)


def test_programs_may_compile_in_several_threads():
    programs = [training_model(Net(plain), CAPTURE) for _ in range(4)]
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


def test_a_sparse_buffer_is_refused_with_advice():
    module = Net(plain)
    module.register_buffer("adjacency", torch.eye(3).to_sparse())
    with pytest.raises(CaptureError, match="edge_index"):
        training_model(module, CAPTURE)(*batch())


def test_a_child_wrapped_by_torch_compile_is_refused_with_advice(monkeypatch):
    # torch.compile switches this off for the whole process; put it back afterwards.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    compiled = Net(plain)
    compiled.layer = torch.compile(compiled.layer, backend="eager")
    with pytest.raises(CaptureError, match="pass the plain module"):
        training_model(compiled, CAPTURE)(*batch())

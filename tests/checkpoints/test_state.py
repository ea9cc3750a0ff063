import copy

import pytest
import torch
from torch import nn

from torchkiln import LAMB, CheckpointError, CheckpointStore, Options, training_model
from torchkiln.checkpoints import (
    load_optimizer_tensors,
    optimizer_tensors,
    random_state,
    set_random_state,
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99), amsgrad=True),
    "tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), capturable=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "lamb": lambda p: LAMB(p, lr=0.1),
}


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(4, 3, generator=generator), torch.rand(4, 2, generator=generator)


def start(name, backend="eager"):
    torch.manual_seed(0)
    model = Model()
    optimizer = OPTIMIZERS[name](model.parameters())
    return model, optimizer, training_model(model, Options(backend=backend), optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_with_the_same_bits(tmp_path, name):
    model, optimizer, program = start(name)
    for seed in range(3):
        program(*batch(seed))
    tensors, facts = optimizer_tensors(optimizer)
    store = CheckpointStore(tmp_path)
    store.save({**tensors, **{f"model/{k}": v for k, v in model.state_dict().items()}}, facts)
    expected = [program(*batch(seed)).item() for seed in range(3, 6)]

    other, other_optimizer, other_program = start(name)
    loaded, facts = store.load()
    other.load_state_dict({k[6:]: v for k, v in loaded.items() if k.startswith("model/")})
    load_optimizer_tensors(other_optimizer, loaded, facts)
    assert [other_program(*batch(seed)).item() for seed in range(3, 6)] == expected
    groups, other_groups = (copy.copy(o.param_groups[0]) for o in (optimizer, other_optimizer))
    groups.pop("params"), other_groups.pop("params")
    assert other_groups == groups
    assert all(type(value) is type(groups[key]) for key, value in other_groups.items())


def test_state_is_followed_by_a_program_that_has_run():
    _, optimizer, program = start("adam", "capture")
    program(*batch(0))
    tensors, facts = optimizer_tensors(optimizer)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for seed in range(4):
        program(*batch(seed))
    load_optimizer_tensors(optimizer, tensors, facts)
    program(*batch(0))
    steps = {float(state["step"]) for state in optimizer.state.values()}
    assert steps == {2.0}


def test_another_optimizer_is_refused():
    _, optimizer, program = start("adam")
    program(*batch(0))
    tensors, facts = optimizer_tensors(optimizer)
    with pytest.raises(CheckpointError, match="that of Adam, the optimiser is SGD"):
        load_optimizer_tensors(start("sgd")[1], tensors, facts)
    fewer = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    with pytest.raises(CheckpointError, match=r"groups of \[3\] parameters, this one of \[1\]"):
        load_optimizer_tensors(fewer, tensors, facts)


def test_random_numbers_go_on():
    torch.manual_seed(1)
    torch.rand(3)
    state = random_state()
    expected = torch.rand(5)
    torch.manual_seed(2)
    set_random_state(state)
    assert torch.equal(torch.rand(5), expected)

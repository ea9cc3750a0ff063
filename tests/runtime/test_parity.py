"""Programs train like plain PyTorch: models, optimisers, loops, reductions."""

from __future__ import annotations

import copy
import itertools
import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from _models import CASES, MLP
from _parity import assert_close_states, assert_same_training, eager_call
from torch import Tensor, nn

from torchkiln.core import Options, OutputMode
from torchkiln.runtime import LAMB, inference_model, training_model

optim = torch.optim
BACKENDS = ("eager", "capture")

OPTIMIZERS = {
    "sgd": partial(optim.SGD, lr=0.1),
    "sgd_decay": partial(optim.SGD, lr=0.1, weight_decay=0.01),
    "sgd_momentum": partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd_nesterov": partial(optim.SGD, lr=0.1, momentum=0.8, nesterov=True),
    "sgd_dampening": partial(optim.SGD, lr=0.1, momentum=0.8, dampening=0.3),
    "sgd_maximize": partial(optim.SGD, lr=0.01, momentum=0.8, maximize=True),
    "adam": partial(optim.Adam, lr=0.01),
    "adam_decay": partial(optim.Adam, lr=0.01, weight_decay=0.1, betas=(0.8, 0.99)),
    "adam_amsgrad": partial(optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
    "adamw_amsgrad": partial(optim.AdamW, lr=0.01, amsgrad=True, maximize=True),
    "rmsprop": partial(optim.RMSprop, lr=0.01),
    "rmsprop_centered": partial(optim.RMSprop, lr=0.01, centered=True, weight_decay=0.01),
    "rmsprop_momentum": partial(optim.RMSprop, lr=0.01, momentum=0.9),
    "rmsprop_all": partial(optim.RMSprop, lr=0.01, momentum=0.9, centered=True, alpha=0.9),
}


class PlainLAMB(optim.Optimizer):
    """LAMB written down once more, from its paper, to compare with."""

    def __init__(self, params, lr=1e-3, weight_decay=1e-2, bias_correction=True):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.bias_correction = bias_correction

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                step = state["step"] = state.get("step", 0) + 1
                m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * param.grad
                v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * param.grad**2
                if self.bias_correction:
                    m, v = m / (1 - 0.9**step), v / (1 - 0.999**step)
                move = m / (v.sqrt() + 1e-8) + group["weight_decay"] * param
                ratio = param.norm() / move.norm() if param.norm() > 0 else 1.0
                param.sub_(group["lr"] * ratio * move)


class PlainTFRMSprop(optim.Optimizer):
    """RMSprop as TensorFlow has it: squares start at one, eps under the root, lr in momentum."""

    def __init__(self, params, lr=0.01, alpha=0.9, eps=1e-6, momentum=0.9):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                square = state.get("v", torch.ones_like(param))
                square = group["alpha"] * square + (1 - group["alpha"]) * param.grad**2
                move = group["lr"] * param.grad / (square + group["eps"]).sqrt()
                buffer = group["momentum"] * state.get("b", 0.0) + move
                state["v"], state["b"] = square, buffer
                param.sub_(buffer)


def tf_rmsprop(params):
    result = optim.RMSprop(params, lr=0.01, alpha=0.9, eps=1e-6, momentum=0.9)
    result.use_tf_variant = True
    return result


def with_extras(make, **extras):
    """Return a factory whose optimisers carry `max_grad_norm`, `loss_scaling`, ..."""

    def build(params):
        result = make(params)
        for name, value in extras.items():
            setattr(result, name, value)
        return result

    return build


def _robust(name: str):
    """Return an optimiser that does not blow up gradients of pure rounding noise.

    Behind BatchNorm and in front of a softmax (attention) some gradients are exactly zero but for
    rounding; Adam would turn them into steps of full size.
    """
    noisy = ("cnn", "dropout", "gat", "transformer")
    return OPTIMIZERS["sgd_momentum" if name in noisy else "adam"]


def lr_schedule(call: int) -> float:
    return 0.02 * (1.1 + math.cos(call / 5))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_ten_steps_of_every_model_agree_with_eager_pytorch(name, backend):
    case = CASES[name]
    assert_same_training(case.make(), _robust(name), case.batch, Options(backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fifty_steps_of_every_optimizer_with_changing_lr_agree(name, backend):
    assert_same_training(
        MLP(),
        OPTIMIZERS[name],
        CASES["mlp"].batch,
        Options(backend=backend),
        calls=50,
        schedule=lr_schedule,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias_correction", [True, False])
def test_fifty_steps_of_lamb_agree_with_its_formula(bias_correction, backend):
    assert_same_training(
        MLP(),
        partial(LAMB, bias_correction=bias_correction),
        CASES["mlp"].batch,
        Options(backend=backend),
        calls=50,
        schedule=lr_schedule,
        make_reference=partial(PlainLAMB, bias_correction=bias_correction),
    )


def test_lamb_without_a_program_trains_the_same():
    assert_same_training(
        MLP(), LAMB, CASES["mlp"].batch, Options(backend="capture"), calls=20, schedule=lr_schedule
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensorflow_variant_of_rmsprop_agrees_with_its_formula(backend):
    assert_same_training(
        MLP(),
        tf_rmsprop,
        CASES["mlp"].batch,
        Options(backend=backend),
        calls=50,
        schedule=lr_schedule,
        make_reference=PlainTFRMSprop,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loops", list(itertools.product([1, 2], repeat=3)))
def test_iterations_accumulation_and_replicas_agree(loops, reduction, backend):
    iterations, accumulation, replicas = loops
    options = Options(
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        replication_factor=replicas,
        reduction=reduction,
        backend=backend,
    )
    # BatchNorm and dropout: the order of micro-batches matters, and so does the random stream.
    case = CASES["dropout"]
    assert_same_training(case.make(), OPTIMIZERS["sgd_momentum"], case.batch, options, calls=5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_clipping_agrees_with_clip_grad_norm(accumulation, backend):
    assert_same_training(
        MLP(),
        with_extras(OPTIMIZERS["sgd_momentum"], max_grad_norm=0.2),
        CASES["mlp"].batch,
        Options(gradient_accumulation=accumulation, backend=backend),
        max_grad_norm=0.2,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_loss_scaling_does_not_change_the_training(accumulation, backend):
    assert_same_training(
        MLP(),
        with_extras(OPTIMIZERS["adam"], loss_scaling=1024.0),
        CASES["mlp"].batch,
        Options(gradient_accumulation=accumulation, backend=backend),
    )


def test_clipping_limit_and_loss_scale_change_without_recompiling():
    module, twin = MLP(), MLP()
    twin.load_state_dict(module.state_dict())
    optimizer, reference = (optim.SGD(m.parameters(), lr=0.1) for m in (module, twin))
    optimizer.max_grad_norm, optimizer.loss_scaling = 0.5, 8.0
    options = Options(backend="capture")
    program = training_model(module, options, optimizer)
    rng = torch.Generator().manual_seed(0)
    for limit, scale in ((0.5, 8.0), (0.1, 64.0), (0.01, 2.0)):
        optimizer.max_grad_norm, optimizer.loss_scaling = limit, scale
        program.set_optimizer(optimizer)
        batch = CASES["mlp"].batch(rng, 1)
        program(*batch)
        eager_call(twin, reference, batch, options, max_grad_norm=limit)
        assert_close_states(module.state_dict(), twin.state_dict())
    assert program.num_compiles == 1


def test_a_first_loss_scale_compiles_once_more_and_changes_no_value():
    module, twin = MLP(), MLP()
    twin.load_state_dict(module.state_dict())
    optimizer, reference = (optim.Adam(m.parameters(), lr=0.1) for m in (module, twin))
    options = Options(backend="capture")
    program = training_model(module, options, optimizer)
    rng = torch.Generator().manual_seed(0)
    for scale in (None, 8.0, 1.0, None, 16.0):
        if scale is None:
            vars(optimizer).pop("loss_scaling", None)
        else:
            optimizer.loss_scaling = scale
        with pytest.warns(UserWarning, match="loss_scaling") if scale == 8.0 else nullcontext():
            program.set_optimizer(optimizer)
        batch = CASES["mlp"].batch(rng, 1)
        program(*batch)
        eager_call(twin, reference, batch, options)
        assert_close_states(module.state_dict(), twin.state_dict())
    assert program.num_compiles == 2


@pytest.mark.parametrize("kind", ["sgd_momentum", "adam", "rmsprop_all"])
def test_optimizer_state_moves_to_plain_pytorch_and_back(kind):
    module, twin = MLP(), MLP()
    twin.load_state_dict(module.state_dict())
    optimizer, reference = (OPTIMIZERS[kind](m.parameters()) for m in (module, twin))
    program = training_model(module, Options(backend="capture"), optimizer)
    rng = torch.Generator().manual_seed(0)
    for _ in range(4):
        batch = CASES["mlp"].batch(rng, 1)
        program(*batch)
        eager_call(twin, reference, batch, program.options)
    # Each goes on with the other's state for a while.
    ours, theirs = copy.deepcopy([optimizer.state_dict(), reference.state_dict()])
    reference.load_state_dict(ours)
    optimizer.load_state_dict(theirs)
    for _ in range(4):
        batch = CASES["mlp"].batch(rng, 1)
        program(*batch)
        eager_call(twin, reference, batch, program.options)
    assert_close_states(module.state_dict(), twin.state_dict())
    assert program.num_compiles == 1


def test_training_resumes_from_a_checkpoint_with_the_same_bits():
    rng = torch.Generator().manual_seed(0)
    batches = [CASES["dropout"].batch(rng, 1) for _ in range(6)]

    def start() -> tuple[nn.Module, optim.Optimizer]:
        torch.manual_seed(5)
        module = CASES["dropout"].make()
        return module, optim.Adam(module.parameters(), lr=0.01)

    module, optimizer = start()
    program = training_model(module, Options(backend="capture"), optimizer)
    for batch in batches[:3]:
        program(*batch)
    saved = copy.deepcopy([module.state_dict(), optimizer.state_dict(), program.rng_state])
    straight = [program(*batch)[1] for batch in batches[3:]]

    other, other_optimizer = start()
    other.load_state_dict(saved[0])
    other_optimizer.load_state_dict(saved[1])
    resumed = training_model(other, Options(backend="capture"), other_optimizer)
    resumed.compile(*batches[0])
    resumed.rng_state = saved[2]
    again = [resumed(*batch)[1] for batch in batches[3:]]
    assert torch.equal(torch.stack(straight), torch.stack(again))


def test_float64_is_not_narrowed():
    module = MLP().double()
    case = CASES["mlp"]

    def batch(rng: torch.Generator, count: int) -> tuple[Tensor, ...]:
        x, y = case.batch(rng, count)
        return x.double(), y

    assert_same_training(module, OPTIMIZERS["adam"], batch, Options(backend="capture"))
    assert all(p.dtype == torch.float64 for p in module.parameters())


def test_training_and_inference_share_weights():
    module = CASES["cnn"].make()
    training = training_model(module, Options(backend="capture"))
    batch = CASES["cnn"].batch(torch.Generator().manual_seed(0), 1)
    training(*batch)
    module.eval()
    inference = inference_model(module, Options(backend="capture"))
    before = inference(*batch)[0]
    assert torch.equal(before, module(*batch)[0])
    module.train()
    training(*batch)
    module.eval()
    after = inference(*batch)[0]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, module(*batch)[0])


# -- native code -------------------------------------------------------------------------------

# Those that differ most; of these, the two that nothing else covers run every time.
REPRESENTATIVE = {
    "mlp": ("mlp", OPTIMIZERS["adamw"], {"device_iterations": 2}),
    "gcn": ("gcn", OPTIMIZERS["adam_decay"], {}),
    "lstm": ("lstm", OPTIMIZERS["rmsprop_all"], {}),
    "transformer": ("transformer", OPTIMIZERS["sgd_momentum"], {}),
    "accumulation": (
        "dropout",
        with_extras(OPTIMIZERS["sgd_nesterov"], max_grad_norm=0.5, loss_scaling=8.0),
        {"gradient_accumulation": 2, "replication_factor": 2, "reduction": "sum"},
    ),
}


@pytest.mark.inductor
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("gcn", "accumulation") else pytest.param(name, marks=pytest.mark.slow)
        for name in REPRESENTATIVE
    ],
)
def test_native_code_agrees_with_eager_pytorch(name, cache_dir):
    model, make_optimizer, settings = REPRESENTATIVE[name]
    case = CASES[model]
    options = Options(backend="inductor", cache_dir=cache_dir, **settings)
    assert_same_training(
        case.make(),
        make_optimizer,
        case.batch,
        options,
        schedule=lr_schedule,
        max_grad_norm=0.5 if name == "accumulation" else None,
    )


@pytest.mark.slow
@pytest.mark.inductor
def test_native_lamb_agrees_with_its_formula(cache_dir):
    assert_same_training(
        MLP(),
        LAMB,
        CASES["mlp"].batch,
        Options(backend="inductor", cache_dir=cache_dir),
        calls=50,
        schedule=lr_schedule,
        make_reference=PlainLAMB,
    )


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_native_code_of_every_optimizer_agrees(name, cache_dir):
    assert_same_training(
        MLP(),
        OPTIMIZERS[name],
        CASES["mlp"].batch,
        Options(backend="inductor", cache_dir=cache_dir),
        calls=50,
        schedule=lr_schedule,
    )


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loops", list(itertools.product([1, 2], repeat=3)))
def test_native_code_of_every_model_and_loop_agrees(loops, reduction, name, cache_dir):
    iterations, accumulation, replicas = loops
    options = Options(
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        replication_factor=replicas,
        reduction=reduction,
        backend="inductor",
        cache_dir=cache_dir,
        output_mode=OutputMode.ALL,
    )
    case = CASES[name]
    assert_same_training(case.make(), _robust(name), case.batch, options, calls=5)

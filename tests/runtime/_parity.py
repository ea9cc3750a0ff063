"""Training the same module twice: as a program, and by a loop of plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.core import Options, OutputMode, Reduction
from torchkiln.data import flatten, map_tensors, rebuild
from torchkiln.runtime import Program, training_model

# What the project promises against eager PyTorch over 10 steps.
LOSS_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-4

MakeOptimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]


def eager_call(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, ...],
    options: Options,
    max_grad_norm: float | None = None,
) -> list[Tensor]:
    """Do what one call of a program does, micro-batch by micro-batch; return all losses."""
    count = options.combined_factor
    slices = list(zip(*(tensor.chunk(count) for tensor in batch), strict=True))
    per_update = options.micro_batches_per_update
    scale = 1.0 / per_update if options.reduction is Reduction.MEAN else 1.0
    losses = []
    for iteration in range(options.device_iterations):
        optimizer.zero_grad()
        for index in range(iteration * per_update, (iteration + 1) * per_update):
            *_, loss = module(*slices[index])
            (loss * scale).backward()
            losses.append(loss.detach())
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)
        optimizer.step()
    return losses


def assert_same_training(
    module: nn.Module,
    make_optimizer: MakeOptimizer,
    batch: Callable[[torch.Generator, int], tuple[Tensor, ...]],
    options: Options,
    *,
    calls: int = 10,
    schedule: Callable[[int], float] | None = None,
    make_reference: MakeOptimizer | None = None,
    max_grad_norm: float | None = None,
) -> None:
    """Train a copy of `module` with each; losses after every call and final weights must agree."""
    options = options.replace(output_mode=OutputMode.ALL, show_progress=False)
    twin = copy.deepcopy(module)
    optimizer = make_optimizer(_groups(module))
    reference = (make_reference or make_optimizer)(_groups(twin))
    program = training_model(module, options, optimizer)
    batches = _batches(batch, options, calls)
    torch.manual_seed(3)
    got = []
    for index, tensors in enumerate(batches):
        if schedule is not None:
            _set_lr(optimizer, schedule(index))
            program.set_optimizer(optimizer)
        *_, losses = program(*tensors)
        got.extend(losses.reshape(-1))
    torch.manual_seed(3)
    expected = []
    for index, tensors in enumerate(batches):
        if schedule is not None:
            _set_lr(reference, schedule(index))
        expected.extend(eager_call(twin, reference, tensors, options, max_grad_norm))
    torch.testing.assert_close(
        torch.stack(got), torch.stack(expected), rtol=LOSS_TOLERANCE, atol=LOSS_TOLERANCE
    )
    assert_close_states(module.state_dict(), twin.state_dict())
    assert program.num_compiles <= 1
    if make_reference is None:
        assert_same_optimizer_state(optimizer, reference)


def assert_close_states(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        difference = (got[name].double() - value.double()).norm()
        limit = WEIGHT_TOLERANCE * value.double().norm() + 1e-7
        assert difference <= limit, f"{name} differs by {difference / value.double().norm()}"


def assert_same_optimizer_state(
    got: torch.optim.Optimizer, expected: torch.optim.Optimizer
) -> None:
    """The state is in torch's format: the same entries, types and shapes, close values."""
    one, other = got.state_dict(), expected.state_dict()
    assert one["state"].keys() == other["state"].keys()
    for index, entries in other["state"].items():
        kept = {key: value for key, value in entries.items() if value is not None}
        assert one["state"][index].keys() == kept.keys()
        for key, value in kept.items():
            found = one["state"][index][key]
            assert found.dtype == value.dtype, f"{key}: {found.dtype} is not {value.dtype}"
            torch.testing.assert_close(found, value, rtol=1e-3, atol=1e-5)


def _groups(module: nn.Module) -> list[dict[str, Any]]:
    """Return two parameter groups: every parity run covers them."""
    params = list(module.parameters())
    return [{"params": params[:1]}, {"params": params[1:]}]


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    first, second = optimizer.param_groups
    first["lr"], second["lr"] = lr, 0.5 * lr


def _batches(
    batch: Callable[[torch.Generator, int], tuple[Tensor, ...]], options: Options, calls: int
) -> list[tuple[Tensor, ...]]:
    rng = torch.Generator().manual_seed(7)
    return [batch(rng, options.combined_factor) for _ in range(calls)]


def _plain_sgd(params: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def assert_like_eager(
    module: nn.Module,
    *batch: Any,
    options: Options | None = None,
    make_optimizer: MakeOptimizer = _plain_sgd,
    steps: int = 3,
    tolerance: float = LOSS_TOLERANCE,
    **keywords: Any,
) -> Program:
    """Train a copy by hand beside the program on one batch; everything must agree.

    The loss is the last tensor that forward returns. Returns the program, for more questions.
    """
    options = (options or Options(backend="capture")).replace(show_progress=False)
    program = training_model(module, options, make_optimizer(module.parameters()))
    ours, theirs = (map_tensors(torch.clone, [batch, keywords]) for _ in range(2))
    program.compile(*ours[0], **ours[1])
    # A copy made here also proves that compiling left nothing behind in the module.
    twin = copy.deepcopy(module)
    reference = make_optimizer(twin.parameters())
    torch.manual_seed(11)
    got = [program(*ours[0], **ours[1]) for _ in range(steps)]
    torch.manual_seed(11)
    expected = [_eager_step(twin, reference, theirs) for _ in range(steps)]
    for one, other in zip(got, expected, strict=True):
        _assert_same_values(one, other, tolerance)
    _assert_same_values(ours, theirs, tolerance)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(
            module.state_dict()[name], value, rtol=10 * tolerance, atol=tolerance, msg=name
        )
    return program


def _eager_step(module: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any) -> Any:
    optimizer.zero_grad()
    outputs = module(*inputs[0], **inputs[1])
    flatten(outputs)[0][-1].sum().backward()
    # Copied before the update: a program's outputs are those of the weights before it.
    result = map_tensors(lambda tensor: tensor.detach().clone(), outputs)
    optimizer.step()
    return result


def _assert_same_values(got: Any, expected: Any, tolerance: float) -> None:
    assert type(got) is type(expected)
    tensors, node = flatten(got)
    others, other_node = flatten(expected)
    assert rebuild(node, range(len(tensors))) == rebuild(other_node, range(len(others)))
    for one, other in zip(tensors, others, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)

"""Bad input: every case has its exception type and a message that names the remedy."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _misuse import Net, X, Y, compiled, options, training
from torch import Tensor, nn

from torchkiln.core import (
    ArgumentError,
    BatchSizeError,
    CaptureError,
    DynamicShapeError,
    ExecutableError,
    MultipleLossesError,
    NoLossError,
    NonFiniteError,
    NotCompiledError,
    OptimizerError,
    Options,
    OptionsError,
    ShapeChanged,
    TorchkilnError,
)
from torchkiln.runtime import LAMB, Program, identity_loss, inference_model, training_model

SGD, Adam = torch.optim.SGD, torch.optim.Adam


def with_extra() -> Program:
    program = training()
    program(X, Y, extra={"shift": torch.ones(3)})
    return program


class Returning(Net):
    """Calls a function of (module, out, y) for its result."""

    def __init__(self, finish: Callable[..., Any]):
        super().__init__()
        self.finish = finish

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.finish(self, self.layer(x), y)


def run(finish: Callable[..., Any], **settings: Any) -> None:
    training(Returning(finish), **settings)(X, Y)


def replace_buffer(m: Net, out: Tensor, y: Tensor) -> Tensor:
    m.count = torch.zeros(5)
    return F.cross_entropy(out, y)


def remove_buffer(m: Net, out: Tensor, y: Tensor) -> Tensor:
    m.count = None
    return F.cross_entropy(out, y)


def replace_parameter(m: Net, out: Tensor, y: Tensor) -> Tensor:
    m.layer.weight = nn.Parameter(torch.zeros(2, 3))
    return F.cross_entropy(out, y)


def divide_by_zero(m: Net, out: Tensor, y: Tensor) -> Tensor:
    return identity_loss(out / (out - out.detach()), "sum")


def overlapping() -> nn.Module:
    net = Net()
    net.other = nn.Linear(3, 2)
    net.other.weight = nn.Parameter(net.layer.weight.detach())
    return net


def set_other_optimizer(first: Callable[..., Any], second: Callable[..., Any]) -> None:
    module = Net()
    program = compiled(module, first(module.parameters()))
    program.set_optimizer(second(module.parameters()))


def set_changed(change: Callable[[torch.optim.Optimizer], None]) -> None:
    module = Net()
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    program = compiled(module, optimizer)
    change(optimizer)
    program.set_optimizer(optimizer)


def replace_weight(value: Tensor) -> None:
    program = compiled()
    program.module.layer.weight = nn.Parameter(value)
    program(X, Y)


def delete_weight() -> None:
    program = compiled()
    del program.module.layer.weight
    program(X, Y)


def call_twice(first: tuple[Any, ...], *args: Any, **kwargs: Any) -> None:
    program = training()
    program(*first)
    program(*args, **kwargs)


OUTSIDE = nn.Linear(2, 2)
COUNTER = torch.zeros(2)


def seed_in_forward(m: Net, out: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.cross_entropy(out + torch.randn(4, 2), y)


def own_generator(m: Net, out: Tensor, y: Tensor) -> Tensor:
    noise = torch.randn(4, 2, generator=torch.Generator().manual_seed(3))
    return F.cross_entropy(out + noise, y)


def write_outside(m: Net, out: Tensor, y: Tensor) -> Tensor:
    COUNTER[1:].add_(1)
    return F.cross_entropy(out, y)


@dataclasses.dataclass
class Result:
    loss: Any


def trained_outside() -> None:
    module = Returning(lambda m, out, y: F.cross_entropy(OUTSIDE(out), y))
    optimizer = SGD([*module.parameters(), *OUTSIDE.parameters()], lr=0.1)
    training(module, optimizer)(X, Y)


def freeze_after_compiling() -> None:
    program = compiled()
    program.module.layer.weight.requires_grad_(False)
    program(X, Y)


def nan_loss() -> None:
    module = Net()
    with torch.no_grad():
        module.layer.weight.fill_(float("nan"))
    training(module, check_finite=True)(X, Y)


class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})


@dataclasses.dataclass(frozen=True)
class Misuse:
    action: Callable[[], Any]
    error: type[BaseException]
    message: str


def misuse(action: Callable[[], Any], error: type[BaseException], message: str) -> Misuse:
    return Misuse(action, error, message)


CASES = {
    # calls that differ from the compiled one
    "wrong shape": misuse(
        lambda: call_twice((X, Y), torch.ones(5, 3), Y),
        ShapeChanged,
        "x: expected torch.Size([4, 3]) but got torch.Size([5, 3])*destroy()",
    ),
    "wrong rank": misuse(
        lambda: call_twice((X, Y), torch.ones(4, 3, 1), Y), ShapeChanged, "x: expected*destroy()"
    ),
    "wrong dtype": misuse(
        lambda: call_twice((X, Y), X.double(), Y),
        ShapeChanged,
        "x: expected torch.float32 but got torch.float64*create a new one",
    ),
    "array instead of tensor": misuse(
        lambda: call_twice((X, Y), np.ones((4, 3)), Y),
        ShapeChanged,
        "Type mismatch for x: expected <class 'torch.Tensor'> but got <class 'numpy.ndarray'>",
    ),
    "none instead of tensor": misuse(
        lambda: call_twice((X, Y), None, Y), ShapeChanged, "Type mismatch for x*NoneType"
    ),
    "constant changed": misuse(
        lambda: call_twice((X, Y, 1.0), X, Y, 2.0),
        ShapeChanged,
        "Value mismatch for scale: expected 1.0 but got 2.0*create a new one",
    ),
    "constant of another type": misuse(
        lambda: call_twice((X, Y, 1.5), X, Y, "1.5"), ShapeChanged, "Type mismatch for scale"
    ),
    "equal constant of another type": misuse(
        lambda: call_twice((X, Y, 1.0), X, Y, True),
        ShapeChanged,
        "Type mismatch for scale: expected <class 'float'> but got <class 'bool'>",
    ),
    "tensor instead of constant": misuse(
        lambda: call_twice((X, Y, 1.0), X, Y, torch.ones(4, 2)), ShapeChanged, "mismatch for scale"
    ),
    "fewer positional arguments": misuse(
        lambda: call_twice((X, Y, 1.0), X, Y),
        ShapeChanged,
        "Number of positional arguments mismatch: expected 3 arguments but got 2",
    ),
    "new keyword": misuse(
        lambda: call_twice((X, Y), X, Y, scale=1.0), ShapeChanged, "Keys mismatch*scale"
    ),
    "dictionary lost a key": misuse(
        lambda: with_extra()(X, Y, extra={}), ShapeChanged, "Keys mismatch for extra*shift"
    ),
    "dictionary became a list": misuse(
        lambda: with_extra()(X, Y, extra=[torch.ones(3)]), ShapeChanged, "Type mismatch for extra"
    ),
    "nested tensor changed": misuse(
        lambda: with_extra()(X, Y, extra={"shift": torch.ones(1)}),
        ShapeChanged,
        "extra['shift']: expected torch.Size([3]) but got torch.Size([1])",
    ),
    # arguments that do not fit forward
    "too many arguments": misuse(
        lambda: training()(X, Y, 1.0, None, None), ArgumentError, "takes 3 positional*signature"
    ),
    "unknown argument": misuse(
        lambda: training()(X, Y, foo=1), ArgumentError, "no argument 'foo'*signature"
    ),
    "argument given twice": misuse(
        lambda: training()(X, Y, x=X), ArgumentError, "'x' is given twice"
    ),
    "missing argument": misuse(
        lambda: training()(X), ArgumentError, "Mandatory parameter y missing*forward is"
    ),
    "empty tensor": misuse(
        lambda: training()(torch.ones(0, 3), Y), ArgumentError, "Zero-sized*pass None"
    ),
    "sparse tensor": misuse(
        lambda: training()(X.to_sparse(), Y), ArgumentError, "torch.sparse_coo*dense"
    ),
    "sparse tensor later": misuse(
        lambda: call_twice((X, Y), X.to_sparse(), Y), ArgumentError, "torch.sparse_coo*dense"
    ),
    # batches
    "batch not divisible": misuse(
        lambda: training(device_iterations=3)(X, Y),
        BatchSizeError,
        "Invalid batch dimension: x has shape (4, 3)*multiple of 3*per micro-batch",
    ),
    "scalar that cannot be divided": misuse(
        lambda: training(gradient_accumulation=2)(X, Y, extra={"shift": torch.ones(())}),
        BatchSizeError,
        "extra['shift']*multiple of 2",
    ),
    # options
    "zero iterations": misuse(
        lambda: Options(device_iterations=0), OptionsError, "at least 1, got 0"
    ),
    "negative accumulation": misuse(
        lambda: Options(gradient_accumulation=-2), OptionsError, "at least 1, got -2"
    ),
    "fractional replicas": misuse(
        lambda: Options(replication_factor=1.5), OptionsError, "whole number"
    ),
    "boolean count": misuse(lambda: Options(device_iterations=True), OptionsError, "whole number"),
    "unknown option": misuse(
        lambda: Options().replace(device_iteration=2), OptionsError, "mean 'device_iterations'?"
    ),
    "unknown option in a file": misuse(
        lambda: Options.from_yaml("nonsense: 1"), OptionsError, "unknown option 'nonsense'; known"
    ),
    "file is no mapping": misuse(
        lambda: Options.from_yaml("- 1"), OptionsError, "expected a mapping of option names"
    ),
    "unknown backend": misuse(
        lambda: Options(backend="cuda"), OptionsError, "'inductor', 'capture', 'eager'; got 'cuda'"
    ),
    "unknown output mode": misuse(
        lambda: Options(output_mode="some"), OptionsError, "output_mode must be one of"
    ),
    "unknown precision": misuse(
        lambda: Options(precision="float8"), OptionsError, "precision must be one of*'bfloat16'"
    ),
    "period does not divide": misuse(
        lambda: Options(output_mode="every_n", device_iterations=4, output_period=3),
        OptionsError,
        "choose a period that does",
    ),
    "groups of unequal size": misuse(
        lambda: Options(replication_factor=3, input_group_size=2), OptionsError, "not a multiple"
    ),
    "process outside": misuse(
        lambda: Options(process_id=2, num_processes=2), OptionsError, "set num_processes"
    ),
    "check_finite not a bool": misuse(
        lambda: Options(check_finite="yes"), OptionsError, "True or False, got 'yes'"
    ),
    "seed not a number": misuse(
        lambda: Options(random_seed="1"), OptionsError, "random_seed must be an int or None"
    ),
    "frozen options": misuse(
        lambda: setattr(Options(), "device_iterations", 2),
        dataclasses.FrozenInstanceError,
        "device_iterations",
    ),
    "options of a program are frozen": misuse(
        lambda: setattr(training().options, "backend", "eager"),
        dataclasses.FrozenInstanceError,
        "backend",
    ),
    "options of another type": misuse(
        lambda: training_model(Net(), {"device_iterations": 2}), OptionsError, "torchkiln.Options"
    ),
    "accumulation for inference": misuse(
        lambda: inference_model(Net(), options(gradient_accumulation=2)),
        OptionsError,
        "must be 1 for inference; use device_iterations",
    ),
    # modules
    "function instead of a module": misuse(
        lambda: training_model(lambda x: x), TypeError, "expected a torch.nn.Module, got function"
    ),
    "class instead of a module": misuse(
        lambda: inference_model(Net), TypeError, "expected a torch.nn.Module, got type*instance"
    ),
    "parameters in the same memory": misuse(
        lambda: training(overlapping())(X, Y),
        CaptureError,
        "'layer.weight' and 'other.weight'*same Parameter",
    ),
    "module without parameters": misuse(
        lambda: training_model(nn.Identity(), options()), OptimizerError, "no parameters*inference"
    ),
    # losses
    "no loss": misuse(lambda: run(lambda m, out, y: out), NoLossError, "identity_loss"),
    "two losses": misuse(
        lambda: run(lambda m, out, y: (F.nll_loss(out, y), F.mse_loss(out, out * 2))),
        MultipleLossesError,
        "identity_loss",
    ),
    "loss not returned": misuse(
        lambda: run(lambda m, out, y: (F.nll_loss(out, y), out)[1]), NoLossError, "return the loss"
    ),
    "NaN loss": misuse(nan_loss, NonFiniteError, "check_finite*learning rate"),
    "infinite loss": misuse(
        lambda: run(divide_by_zero, check_finite=True), NonFiniteError, "NaN or infinity"
    ),
    "user's own exception": misuse(
        lambda: run(lambda m, out, y: {}["missing"]), KeyError, "missing"
    ),
    # forward
    "buffer replaced by another shape": misuse(
        lambda: run(replace_buffer), CaptureError, "'count' is reassigned*keep its size"
    ),
    "buffer removed": misuse(
        lambda: run(remove_buffer), CaptureError, "'count' is removed*set it to zero"
    ),
    "parameter replaced": misuse(
        lambda: run(replace_parameter), CaptureError, "'layer.weight' is reassigned*in place"
    ),
    "tensors hidden in an object": misuse(
        lambda: run(lambda m, out, y: Result(F.cross_entropy(out, y))),
        CaptureError,
        "output is a Result that holds tensors*register_container(Result",
    ),
    "tensors hidden deep in an object": misuse(
        lambda: run(lambda m, out, y: (F.cross_entropy(out, y), Result([Result(out)]))),
        CaptureError,
        "output[1] is a Result that holds tensors*register_container(Result",
    ),
    "seeding in forward": misuse(
        lambda: run(seed_in_forward), CaptureError, "manual_seed(3)*seed before calling"
    ),
    "generator of its own": misuse(
        lambda: run(own_generator), CaptureError, "aten.randn*torch's default generator"
    ),
    "writing to a tensor outside": misuse(
        lambda: run(write_outside), CaptureError, "shape (2,)*register_buffer"
    ),
    "training a parameter outside": misuse(
        trained_outside, CaptureError, "shape (2, 2) outside the module*nn.ModuleList"
    ),
    "decision by value": misuse(
        lambda: run(lambda m, out, y: out if out.sum() > 0 else -out),
        DynamicShapeError,
        "torch.where(condition, a, b)",
    ),
    # optimisers
    "unsupported optimiser": misuse(
        lambda: training(m := Net(), torch.optim.Adagrad(m.parameters())),
        OptimizerError,
        "Adagrad; use one of SGD, Adam, AdamW, RMSprop (torch.optim) or LAMB",
    ),
    "own optimiser": misuse(
        lambda: training(m := Net(), Own(m.parameters())), OptimizerError, "type Own; use one of"
    ),
    "not an optimiser": misuse(
        lambda: training(Net(), "adam"), OptimizerError, "type str; use one of SGD"
    ),
    "scheduler instead of an optimiser": misuse(
        lambda: training(
            m := Net(), torch.optim.lr_scheduler.StepLR(SGD(m.parameters(), lr=0.1), 1)
        ),
        OptimizerError,
        "type StepLR; use one of SGD",
    ),
    "optimiser of another module": misuse(
        lambda: training(Net(), SGD(Net().parameters(), lr=0.1))(X, Y),
        OptimizerError,
        "no parameter of the module*same module",
    ),
    "optimiser kind changed": misuse(
        lambda: set_other_optimizer(lambda p: SGD(p, lr=0.1), Adam),
        OptimizerError,
        "compiled for SGD, got Adam*destroy()",
    ),
    "LAMB became Adam": misuse(
        lambda: set_other_optimizer(LAMB, Adam), OptimizerError, "compiled for LAMB, got Adam"
    ),
    "momentum switched off": misuse(
        lambda: set_changed(lambda o: o.param_groups[0].update(momentum=0.0)),
        OptimizerError,
        "structure of the optimiser changed*destroy()",
    ),
    "clipping switched on": misuse(
        lambda: set_changed(lambda o: setattr(o, "max_grad_norm", 1.0)),
        OptimizerError,
        "structure of the optimiser changed*clipping",
    ),
    "parameter group added": misuse(
        lambda: set_changed(lambda o: o.add_param_group({"params": [nn.Parameter(X)]})),
        OptimizerError,
        "1 parameter groups, got 2*destroy()",
    ),
    "optimiser for inference": misuse(
        lambda: inference_model(Net(), options()).set_optimizer(SGD(Net().parameters())),
        OptimizerError,
        "use training_model",
    ),
    "set something else": misuse(
        lambda: training().set_optimizer(0.1), OptimizerError, "got float; use one of SGD"
    ),
    "other module's optimiser set": misuse(
        lambda: compiled().set_optimizer(SGD(Net().parameters(), lr=0.1)),
        OptimizerError,
        "same module",
    ),
    # weights that changed after compilation
    "weight of another shape": misuse(
        lambda: replace_weight(torch.ones(5, 3)),
        ExecutableError,
        "'layer.weight' changed*destroy()",
    ),
    "weight of another dtype": misuse(
        lambda: replace_weight(torch.ones(2, 3).double()), ExecutableError, "float64*destroy()"
    ),
    "weight of another layout": misuse(
        lambda: replace_weight(torch.ones(3, 2).t()), ExecutableError, "'layer.weight' changed"
    ),
    "parameter frozen": misuse(freeze_after_compiling, ExecutableError, "requires_grad*destroy()"),
    "weight removed": misuse(delete_weight, ExecutableError, "was removed*destroy()"),
    # life cycle
    "time before compiling": misuse(
        lambda: training().compilation_time, NotCompiledError, "compile(...), first"
    ),
    "names before compiling": misuse(
        lambda: training().tensor_names(), NotCompiledError, "compile(...), first"
    ),
    "export before compiling": misuse(
        lambda: training().export("x"), NotCompiledError, "call compile(...) before export()"
    ),
    "export after destroy": misuse(
        lambda: [p := compiled(), p.destroy(), p.export("x")], NotCompiledError, "call compile"
    ),
    "export without native code": misuse(
        lambda: compiled().export("x"), ExecutableError, "'capture'*backend='inductor'"
    ),
    "tensor that is not anchored": misuse(
        lambda: compiled().anchored("loss"), KeyError, "not anchored; anchored tensors: []"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_misuse_is_refused_with_the_remedy(name):
    case = CASES[name]
    with pytest.raises(case.error) as caught:
        case.action()
    pattern = ".*".join(re.escape(part) for part in case.message.split("*"))
    assert re.search(pattern, str(caught.value), re.DOTALL), str(caught.value)


def test_there_are_enough_cases():
    assert len(CASES) >= 40


def test_every_error_is_ours_and_a_builtin_one():
    ours = {case.error for case in CASES.values() if issubclass(case.error, TorchkilnError)}
    builtin = (ValueError, TypeError, RuntimeError, FloatingPointError)
    assert len(ours) >= 12
    assert all(issubclass(error, builtin) for error in ours)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda p: p(X, Y, 1.0, None, None), "too_many"),
        (lambda p: p(X, Y, foo=1), "unknown"),
        (lambda p: p(X, Y, x=X), "duplicate"),
        (lambda p: p(X), "missing"),
        (lambda p: p(torch.ones(0, 3), Y), "empty"),
    ],
)
def test_argument_errors_say_their_kind(call, kind):
    with pytest.raises(ArgumentError) as caught:
        call(training())
    assert caught.value.kind == kind


def test_missing_argument_of_a_variadic_forward_is_pythons_own_message():
    class Variadic(nn.Module):
        def forward(self, x, *rest, **more):
            return x

    with pytest.raises(ArgumentError, match="missing a required argument: 'x'"):
        inference_model(Variadic(), options())()

"""What several processes do besides training: each function is one check, called on all ranks.

As a script: `_together_checks.py FOLDER` leaves what each rank found in FOLDER.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

import torchkiln
from torchkiln import Options, distributed, identity_loss, inference_model, training_model
from torchkiln.core import add_listener
from torchkiln.distributed import World

CHECKS: dict[str, Callable[[World, Path], Any]] = {}


def check(function: Callable[[World, Path], Any]) -> Callable[[World, Path], Any]:
    CHECKS[function.__name__] = function
    return function


class Line(nn.Module):
    def __init__(self, width: int = 3, p: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, 2)
        self.p = p

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.dropout(torch.tanh(self.first(x)), self.p)
        loss = self.second(hidden).square().mean()
        return hidden, identity_loss(loss, "none")


def program_of(world: World, module: nn.Module | None = None, **options: Any) -> Any:
    made = world.options(Options(**{"backend": "capture", "show_progress": False, **options}))
    module = module or Line()
    return training_model(module, made, torch.optim.SGD(module.parameters(), lr=0.1))


def rows(world: World, count: int = 5) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(world.rank))


def weights(program: Any) -> list[Any]:
    return [tensor.tolist() for tensor in program.module.parameters()]


def error_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# -- programs that differ ---------------------------------------------------------------------


@check
def another_model(world: World, folder: Path) -> Any:
    program = program_of(world, Line(3 + world.rank))
    return error_of(lambda: program(rows(world)))


@check
def another_rate(world: World, folder: Path) -> Any:
    module = Line()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1 * (1 + world.rank))
    program = training_model(module, world.options(Options(backend="eager")), optimizer)
    return error_of(lambda: program(rows(world)))


@check
def other_groups(world: World, folder: Path) -> Any:
    module = Line()
    groups = [{"params": list(module.parameters())}]
    if world.rank == 1:
        groups = [{"params": list(part.parameters())} for part in module.children()]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    program = training_model(module, world.options(Options(backend="eager")), optimizer)
    return error_of(lambda: program(rows(world)))


@check
def other_options(world: World, folder: Path) -> Any:
    program = program_of(world, reduction=["mean", "sum"][world.rank])
    return error_of(lambda: program(rows(world)))


@check
def other_arguments(world: World, folder: Path) -> Any:
    program = program_of(world)
    return error_of(lambda: program(rows(world, 5 + world.rank)))


@check
def another_layout(world: World, folder: Path) -> Any:
    """The same parameters in another order of memory would be added crosswise."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    module.forward = lambda x: identity_loss(nn.Sequential.forward(module, x), "mean")
    if world.rank == 1:
        module.to(memory_format=torch.channels_last)
    program = program_of(world, module, backend="eager")
    return error_of(lambda: program(torch.randn(2, 3, 5, 5)))


@check
def a_forward_that_depends_on_the_rank(world: World, folder: Path) -> Any:
    class Ranked(Line):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            if world.rank == 1:
                return super().forward(x)
            hidden = self.first(x)
            return hidden, identity_loss(hidden.square(), "mean")

    program = program_of(world, Ranked())
    return error_of(lambda: program(rows(world)))


@check
def other_folders_are_fine(world: World, folder: Path) -> Any:
    program = program_of(world, cache_dir=folder / str(world.rank), random_seed=world.rank)
    program(rows(world))
    return weights(program)


@check
def options_of_another_rank(world: World, folder: Path) -> Any:
    options = world.options(Options(backend="eager")).replace(process_id=0)
    return error_of(lambda: training_model(Line(), options))


@check
def lone_training_warns_once(world: World, folder: Path) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            program = training_model(Line(), Options(backend="eager"))
            program(rows(world))
    return [[str(one.message) for one in caught], program.group is None]


# -- updates that differ ----------------------------------------------------------------------


@check
def different_updates(world: World, folder: Path) -> Any:
    program = program_of(world)
    program(rows(world))
    exchange = program.executor.sharing._exchange
    exchange._num_updates += world.rank
    told = error_of(lambda: program(rows(world)))
    is_zero = not any(total.any() for total in program.executor.sharing.sums)
    exchange._num_updates -= world.rank
    program(rows(world))
    return [told, is_zero, weights(program)]


@check
def different_rates_later(world: World, folder: Path) -> Any:
    program = program_of(world)
    program(rows(world))
    program.optimizer.param_groups[0]["lr"] = 0.2
    if world.rank == 0:
        program.set_optimizer(program.optimizer)
    told = error_of(lambda: program(rows(world)))
    program.set_optimizer(program.optimizer)
    program(rows(world))
    return [told, weights(program)]


@check
def interrupted(world: World, folder: Path) -> Any:
    """An update that is broken off leaves nothing behind."""
    torch.manual_seed(0)
    program, other = program_of(world), program_of(world)
    other.module.load_state_dict(program.module.state_dict())

    def interrupt(outputs: list[Any]) -> list[float]:
        raise KeyboardInterrupt

    program(rows(world))
    program.exchange_notes(1, interrupt)
    told = error_of(lambda: program(rows(world)))
    is_zero = not any(total.any() for total in program.executor.sharing.sums)
    program.exchange_notes(0, list)
    program(rows(world))
    for _ in range(2):
        other(rows(world))
    return [told, is_zero, weights(program), weights(other)]


@check
def numbers_of_notes_differ(world: World, folder: Path) -> Any:
    program = program_of(world)
    program(rows(world))
    return error_of(lambda: program.exchange_notes(1 + world.rank, lambda outputs: [1.0]))


@check
def notes_say_what_each_rank_wrote(world: World, folder: Path) -> Any:
    program = program_of(world, device_iterations=2, gradient_accumulation=2)
    shapes = []

    def write(outputs: list[Any]) -> list[float]:
        shapes.append([list(part.shape) for out in outputs for part in out])
        return [world.rank + 0.5, float("nan"), -1e-30]

    program.exchange_notes(3, write)
    program(rows(world, 8))
    first = program.notes.tolist()
    program.exchange_notes(1, lambda outputs: [float(len(outputs))])
    program(rows(world, 8))
    return [first, shapes, program.notes.tolist(), str(program.notes.dtype)]


# -- state ------------------------------------------------------------------------------------


@check
def state_of_rank_0(world: World, folder: Path) -> Any:
    """Rank 0 alone trained before, and some of its parameters have no state."""
    module = Line()
    module.unused = nn.Parameter(torch.ones(2))
    module.noise = torch.randn(3) + world.rank
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    if world.rank == 0:
        for _ in range(3):
            optimizer.zero_grad()
            module(rows(world))[1].backward()
            optimizer.step()
    options = world.options(Options(backend="capture", show_progress=False))
    program = training_model(module, options, optimizer)
    for _ in range(2):
        program(rows(world))
    state = {
        index: {name: value.tolist() for name, value in own.items()}
        for index, own in optimizer.state_dict()["state"].items()
    }
    return [weights(program), state, module.noise.tolist()]


@check
def gradients_that_reach_one_rank_only(world: World, folder: Path) -> Any:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Parameter(torch.ones(2))
            self.right = nn.Parameter(torch.ones(2))
            self.neither = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            used = self.left if float(x.sum()) < 0 else self.right
            return identity_loss(x * used, "sum")

    module = Branches()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    program = training_model(module, world.options(Options(backend="eager")), optimizer)
    for _ in range(3):
        program(torch.full((1, 2), 2.0 * world.rank - 1))
    return [weights(program), len(optimizer.state)]


@check
def lazy_layers(world: World, folder: Path) -> Any:
    torch.manual_seed(world.rank)
    module = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    module.forward = lambda x: identity_loss(nn.Sequential.forward(module, x).square(), "mean")
    program = program_of(world, module)
    for _ in range(2):
        program(rows(world))
    return [weights(program), module[1].running_mean.tolist()]


@check
def inference_is_nobody_elses_business(world: World, folder: Path) -> Any:
    options = world.options(Options(backend="capture", show_progress=False))
    program = inference_model(Line(), options)
    if world.rank == 0:
        program(rows(world))
    return [program.group is None, error_of(lambda: program.exchange_notes(1, list))]


# -- random numbers ---------------------------------------------------------------------------


def _masks(world: World, **options: Any) -> Any:
    program = program_of(world, Line(64, p=0.5), **options)
    x = torch.ones(2, 4)  # the same on all ranks: only masks can differ
    first, second = (program(x)[0] != 0 for _ in range(2))
    return [first.tolist(), second.tolist()]


@check
def masks_with_a_seed(world: World, folder: Path) -> Any:
    return _masks(world, random_seed=7)


@check
def masks_after_equal_seeds(world: World, folder: Path) -> Any:
    torch.manual_seed(3)
    return _masks(world)


@check
def a_state_of_ones_own_is_kept(world: World, folder: Path) -> Any:
    torch.manual_seed(100 + world.rank)
    program_of(world).compile(rows(world))
    return torch.initial_seed()


# -- looking inside ---------------------------------------------------------------------------


@check
def a_profile_of_one_rank(world: World, folder: Path) -> Any:
    program = program_of(world)
    refused = error_of(lambda: program.profile(rows(world)))
    program(rows(world))
    if world.rank == 0:
        program.profile(rows(world))
    for _ in range(2):
        program(rows(world))
    return [refused, weights(program)]


@check
def memory_of_gradient_sums(world: World, folder: Path) -> Any:
    """Return what a step needs for gradients with others, and more than alone."""
    module = Line()
    alone = Options(backend="capture", show_progress=False, sync_gradients=False)
    reports = [
        training_model(module, options).memory_report(rows(world))
        for options in (world.options(alone.replace(sync_gradients=None)), alone)
    ]
    sums = sum(p.nbytes for p in module.parameters())
    return [reports[0].gradient_bytes - sums, reports[1].gradient_bytes, sums]


@check
def collectives_are_traced(world: World, folder: Path) -> Any:
    heard: list[str] = []
    remove = add_listener(lambda span: heard.append(f"{span.channel}: {span.label}"))
    program = program_of(world, device_iterations=3)
    program(rows(world, 6))
    remove()
    seconds = program.collective_seconds
    return [heard.count("collective: gradients"), 0 < seconds < program.group.seconds]


# -- native code ------------------------------------------------------------------------------


@check
def one_rank_compiles_and_files_are_loaded(world: World, folder: Path) -> Any:
    program = program_of(world, backend="inductor", cache_dir=None)
    program(rows(world))
    compiled = program.num_compiles
    path = folder / "program.kiln"
    if world.rank == 0:
        program.export(path)
    program.group.meet("export")
    torch.manual_seed(11)
    other = Line()
    loaded = torchkiln.load(path, other, torch.optim.SGD(other.parameters(), lr=0.1))
    loaded(rows(world))
    program(rows(world))
    place = [loaded.options.num_processes, loaded.options.process_id]
    return [compiled, place, weights(program), weights(loaded), torch.rand(1).item()]


def main() -> None:
    import _drift_checks  # which needs what is above

    folder = Path(sys.argv[1])
    world = distributed.start()
    told: dict[str, Any] = {}
    for name, function in (CHECKS | _drift_checks.CHECKS).items():
        try:
            told[name] = function(world, folder)
        except BaseException:
            told[name] = traceback.format_exc()
            (folder / f"rank{world.rank}.json").write_text(json.dumps(told))
            raise
    (folder / f"rank{world.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

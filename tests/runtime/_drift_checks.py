"""What would let the weights of processes drift apart; each function is one check of two ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _together_checks import Line, error_of, program_of, rows, weights

from torchkiln.distributed import World


def programs_in_another_order(world: World, folder: Path) -> Any:
    """Gradients of one model must not be added to those of another that looks the same."""
    programs = [program_of(world), program_of(world)]
    for program in programs:
        program(rows(world))
    before = [weights(program) for program in programs]
    told = error_of(lambda: programs[world.rank](rows(world)))
    return [told, before == [weights(program) for program in programs]]


def _after_a_change(world: World, change: Callable[[Any], None]) -> list[Any]:
    """Change something on rank 1 between two calls, then on both; return what the calls say."""
    program = program_of(world)
    program.optimizer.param_groups[0]["momentum"] = 0.9
    program.set_optimizer(program.optimizer)
    program(rows(world))
    if world.rank == 1:
        change(program)
    before = weights(program)
    told = error_of(lambda: program(rows(world)))
    is_kept = before == weights(program)
    if world.rank == 0:
        change(program)
    return [told, is_kept, error_of(lambda: program(rows(world))), weights(program)]


def weights_that_one_rank_loads(world: World, folder: Path) -> Any:
    state = {name: torch.ones_like(t) for name, t in Line().state_dict().items()}
    return _after_a_change(world, lambda program: program.module.load_state_dict(state))


def weights_that_one_rank_replaces(world: World, folder: Path) -> Any:
    def replace(program: Any) -> None:
        program.module.first.weight.data = torch.ones(3, 4)

    return _after_a_change(world, replace)


def state_that_one_rank_loads(world: World, folder: Path) -> Any:
    def load(program: Any) -> None:
        loaded = program.optimizer.state_dict()
        for own in loaded["state"].values():
            own["momentum_buffer"] = torch.ones_like(own["momentum_buffer"])
        program.optimizer.load_state_dict(loaded)

    return _after_a_change(world, load)


def weights_that_are_put_back(world: World, folder: Path) -> Any:
    """What one rank swaps in and out, as for an evaluation with averaged weights, is no change."""
    program = program_of(world)
    program(rows(world))
    if world.rank == 0:
        kept = {name: t.clone() for name, t in program.module.state_dict().items()}
        program.module.load_state_dict({name: t + 1 for name, t in kept.items()})
        program.module.load_state_dict(kept)
    program(rows(world))
    return weights(program)


CHECKS: dict[str, Callable[[World, Path], Any]] = {
    function.__name__: function
    for function in (
        programs_in_another_order,
        weights_that_one_rank_loads,
        weights_that_one_rank_replaces,
        state_that_one_rank_loads,
        weights_that_are_put_back,
    )
}

"""What ranks do with divided state besides training: each function is a check, called on all ranks.

As a script: `_sharding_checks.py FOLDER [NAME...]` leaves in FOLDER what each rank found, and
`_sharding_checks.py FOLDER alone NUM_RANKS` what one process does in the place of so many.
"""

from __future__ import annotations

import copy
import gc
import json
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _sharding_cases import CASES, Regression, batches_of, program_of, weights_of
from torch import nn

import torchkiln
from torchkiln import Options, distributed, training_model
from torchkiln.distributed import World

CHECKS: dict[str, Callable[[World, Path], Any]] = {}
ADAMW = CASES["adamw"]


def check(function: Callable[[World, Path], Any]) -> Callable[[World, Path], Any]:
    CHECKS[function.__name__] = function
    return function


def error_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def run(program: Any, begin: int = 0, end: int = 3) -> Any:
    for batch in batches_of(program)[begin:end]:
        program(*batch)
    return program


def plain(program: Any) -> list[Any]:
    return [weight.tolist() for weight in weights_of(program)]


def straight(num_calls: int, *, is_divided: bool = False) -> list[Any]:
    """Return the weights of a run that nothing happened to."""
    return plain(run(program_of(ADAMW, is_divided=is_divided), 0, num_calls))


def saved(program: Any) -> dict[str, Any]:
    """Return a copy of weights and optimiser."""
    return copy.deepcopy(
        {"weights": program.module.state_dict(), "optimizer": program.optimizer.state_dict()}
    )


def resumed(state: dict[str, Any], *, is_divided: bool, **options: Any) -> Any:
    program = program_of(ADAMW, is_divided=is_divided, **options)
    program.module.load_state_dict(state["weights"])
    program.optimizer.load_state_dict(state["optimizer"])
    return program


# -- looking at the state ---------------------------------------------------------------------


@check
def state_is_shown_when_it_was_gathered(world: World, folder: Path) -> Any:
    program = program_of(ADAMW, is_divided=True)
    num_states = []

    def look() -> str:
        num_states.append(len(program.optimizer.state_dict()["state"]))
        return ""

    told = [error_of(look)]
    run(program, 0, 1)
    told.append(error_of(look))
    told.append(error_of(program.optimizer.step))
    program.gather_optimizer_state(to="first")
    told.append(error_of(look))
    torchkiln.checkpoints.gather_optimizer_state(program.optimizer)
    told.append(error_of(look))
    run(program, 1, 2)
    told.append(error_of(look))
    wrong = error_of(lambda: program.gather_optimizer_state(to="second"))
    return [told, num_states, wrong, plain(program) == straight(2)]


@check
def copies_of_the_optimizer(world: World, folder: Path) -> Any:
    """Return what is said of copies and pickles of divided state, and whether others are whole."""
    program = program_of(ADAMW, is_divided=True)
    optimizer = program.optimizer
    ways: list[Callable[[Any], Any]] = [copy.deepcopy, copy.copy, pickle.dumps]
    told = [error_of(lambda way=way: way(optimizer)) for way in ways]
    run(program, 0, 2)
    told += [error_of(lambda way=way: way(optimizer)) for way in ways]
    program.gather_optimizer_state()
    expected = optimizer.state_dict()["state"]
    copied = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    is_same = [
        all(
            torch.equal(tensor, one.state_dict()["state"][index][name])
            for index, own in expected.items()
            for name, tensor in own.items()
        )
        for one in copied
    ]
    run(program, 2, 3)
    told.append(error_of(lambda: copy.deepcopy(optimizer)))
    told.append(error_of(lambda: copy.deepcopy(copied[0])))
    return [told, len(expected), is_same, plain(program) == straight(3)]


@check
def bytes_of_state(world: World, folder: Path) -> Any:
    """Return the bytes of parameters, of the state of this rank, and what a report predicts."""
    module = nn.Sequential(nn.Linear(200, 300), nn.Tanh(), nn.Linear(300, 11))
    module.forward = lambda x: torchkiln.identity_loss(nn.Sequential.forward(module, x), "mean")
    options = Options(backend="capture", show_progress=False, shard_optimizer=True)
    program = training_model(module, world.options(options), torch.optim.Adam(module.parameters()))
    x = torch.randn(4, 200)
    program(x)
    binding = program._optimizer
    own = sum(tensor.untyped_storage().nbytes() for tensor in binding.state_tensors)
    parameters = sum(param.nbytes for param in module.parameters())
    left = sum(map(len, program.optimizer.state.values()))
    return [parameters, own, program.memory_report(x).optimizer_bytes, left]


# -- saving and loading -----------------------------------------------------------------------


@check
def saved_state_goes_on(world: World, folder: Path) -> Any:
    """A state of this world is continued by it, divided or whole, and written for others."""
    program = run(program_of(ADAMW, is_divided=True), 0, 3)
    program.gather_optimizer_state()
    state = saved(program)
    if world.is_first:
        torch.save(state, folder / "divided.pt")
    whole = run(program_of(ADAMW, is_divided=False), 0, 3)
    reached = [
        plain(run(program, 3, 6)),
        plain(run(resumed(state, is_divided=True), 3, 6)),
        plain(run(resumed(state, is_divided=False), 3, 6)),
        plain(run(resumed(saved(whole), is_divided=True), 3, 6)),
    ]
    expected = straight(6)
    return [one == expected for one in reached]


@check
def state_of_others_goes_on(world: World, folder: Path) -> Any:
    """Go on, divided, where a process alone or another number of ranks stopped."""
    path = folder / "foreign.pt"
    if not path.exists():
        return None
    program = run(resumed(torch.load(path), is_divided=True), 3, 6)
    program.gather_optimizer_state()
    reached = saved(program)
    if world.is_first:
        torch.save(reached, folder / "went_on.pt")
    whole = run(resumed(torch.load(path), is_divided=False), 3, 6)
    return plain(program) == plain(whole)


@check
def state_that_rank_0_alone_has(world: World, folder: Path) -> Any:
    state = saved(run(program_of(ADAMW, is_divided=False), 0, 3))
    program = program_of(ADAMW, is_divided=True)
    if world.is_first:
        program.module.load_state_dict(state["weights"])
        program.optimizer.load_state_dict(state["optimizer"])
    return plain(run(program, 3, 6)) == straight(6)


@check
def state_that_is_loaded_in_the_middle(world: World, folder: Path) -> Any:
    program = run(program_of(ADAMW, is_divided=True), 0, 2)
    program.gather_optimizer_state()
    state = saved(program)
    run(program, 2, 5)
    program.module.load_state_dict(state["weights"])
    program.optimizer.load_state_dict(state["optimizer"])
    # Without a call in between, what was loaded is what is gathered.
    program.gather_optimizer_state()
    again = program.optimizer.state_dict()["state"]
    kept = [
        torch.equal(again[key]["exp_avg"], own["exp_avg"])
        for key, own in state["optimizer"]["state"].items()
    ]
    is_same = plain(run(program, 2, 4)) == straight(4)
    # A state without values begins afresh, as a new optimiser does.
    program.module.load_state_dict(state["weights"])
    program.optimizer.load_state_dict({**state["optimizer"], "state": {}})
    fresh = resumed({**state, "optimizer": {**state["optimizer"], "state": {}}}, is_divided=False)
    return [all(kept), is_same, plain(run(program, 2, 4)) == plain(run(fresh, 2, 4))]


@check
def state_that_was_changed_by_hand(world: World, folder: Path) -> Any:
    """It counts if all ranks have it; rank 0 alone must not change it, nor forget it."""

    def change(program: Any) -> None:
        for own in program.optimizer.state.values():
            own["exp_avg"] *= 0.5

    divided, whole = (run(program_of(ADAMW, is_divided=d), 0, 2) for d in (True, False))
    divided.gather_optimizer_state()
    change(divided)
    change(whole)
    is_same = plain(run(divided, 2, 4)) == plain(run(whole, 2, 4))
    divided.gather_optimizer_state()
    divided.optimizer.state.clear()
    whole.optimizer.state.clear()
    is_same_again = plain(run(divided, 4, 6)) == plain(run(whole, 4, 6))
    divided.gather_optimizer_state(to="first")
    told = ""
    if world.is_first:
        change(divided)
        told = error_of(lambda: divided._optimizer.begin_call())
    return [is_same, is_same_again, told]


@check
def a_step_of_torch_between_calls(world: World, folder: Path) -> Any:
    reached = []
    for is_divided in (True, False):
        program = run(program_of(ADAMW, is_divided=is_divided), 0, 2)
        program.gather_optimizer_state()
        for parameter in program.module.parameters():
            parameter.grad = torch.full_like(parameter, 0.1)
        program.optimizer.step()
        for name, _ in program.module.unused.named_parameters():  # has state only now
            del program.optimizer.state[getattr(program.module.unused, name)]
        reached.append(plain(run(program, 2, 4)))
    return reached[0] == reached[1]


# -- the life of a program --------------------------------------------------------------------


@check
def compiled_again(world: World, folder: Path) -> Any:
    program = run(program_of(ADAMW, is_divided=True), 0, 2)
    program.destroy()
    told = error_of(program.optimizer.state_dict)
    program.gather_optimizer_state()
    num_states = len(program.optimizer.state_dict()["state"])
    run(program, 2, 4)
    program.destroy()
    run(program, 4, 5)
    program.destroy()
    # Another program takes over the state of one that is destroyed.
    options = program.options.replace(shard_optimizer=False)
    other = training_model(program.module, options, program.optimizer)
    run(other, 5, 6)
    return [
        told,
        num_states,
        plain(other) == straight(6),
        len(other.optimizer.state_dict()["state"]),
    ]


@check
def two_programs_with_one_optimizer(world: World, folder: Path) -> Any:
    program = run(program_of(ADAMW, is_divided=True), 0, 1)
    batch = batches_of(program)[0]
    other = training_model(program.module, program.options, program.optimizer)
    alone = program.options.replace(sync_gradients=False)
    lone = training_model(program.module, alone, program.optimizer)
    return [error_of(lambda: other(*batch)), error_of(lambda: lone(*batch))]


@check
def a_program_that_is_gone(world: World, folder: Path) -> Any:
    """Its part of the state is lost; another state can be loaded."""
    program = run(program_of(ADAMW, is_divided=True), 0, 2)
    program.gather_optimizer_state()
    state = saved(program)
    run(program, 2, 3)
    module, optimizer = program.module, program.optimizer
    options = program.options
    del program
    gc.collect()
    told = error_of(lambda: torchkiln.checkpoints.gather_optimizer_state(optimizer))
    other = training_model(module, options, optimizer)
    batches = batches_of(other)
    told_again = error_of(lambda: other(*batches[2]))
    module.load_state_dict(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    return [told, told_again, plain(run(other, 2, 4)) == straight(4)]


@check
def another_optimizer(world: World, folder: Path) -> Any:
    """The state moves to a new object, with other numbers; one that has state brings its own."""
    reached = []
    for is_divided in (True, False):
        program = run(program_of(ADAMW, is_divided=is_divided), 0, 2)
        first = program.optimizer
        second = ADAMW.optimizer(program.module)
        for group in second.param_groups:
            group["lr"] = 0.003
        program.set_optimizer(second)
        run(program, 2, 4)
        program.gather_optimizer_state()
        state = copy.deepcopy(second.state_dict())
        third = ADAMW.optimizer(program.module)
        third.load_state_dict(state)
        program.set_optimizer(third)
        run(program, 4, 5)
        program.set_optimizer(first) if is_divided else None
        reached.append(plain(program))
    return [reached[0] == reached[1], run(program, 5, 6) is program]


@check
def a_profile_of_one_rank(world: World, folder: Path) -> Any:
    program = run(program_of(CASES["clipped lamb"], is_divided=True), 0, 2)
    other = run(program_of(CASES["clipped lamb"], is_divided=True), 0, 2)
    if world.is_first:
        program.profile(*batches_of(program)[0])
    return plain(run(program, 2, 4)) == plain(run(other, 2, 4))


@check
def an_interrupted_update(world: World, folder: Path) -> Any:
    program = run(program_of(ADAMW, is_divided=True), 0, 2)

    def interrupt(outputs: list[Any]) -> list[float]:
        raise KeyboardInterrupt

    program.exchange_notes(1, interrupt)
    told = error_of(lambda: run(program, 2, 3))
    is_zero = not any(total.any() for total in program.executor.sharing.sums)
    program.exchange_notes(0, list)
    return [told, is_zero, plain(run(program, 2, 4)) == straight(4)]


@check
def different_updates(world: World, folder: Path) -> Any:
    program = run(program_of(ADAMW, is_divided=True), 0, 2)
    exchange = program.executor.sharing._exchange
    exchange._num_updates += world.rank
    told = [error_of(lambda: run(program, 2, 3))]
    is_zero = not any(total.any() for total in program.executor.sharing.sums)
    exchange._num_updates -= world.rank
    program.optimizer.param_groups[0]["lr"] = 0.02
    if world.is_first:
        program.set_optimizer(program.optimizer)
    told.append(error_of(lambda: run(program, 2, 3)))
    return [told, is_zero]


@check
def weights_that_were_replaced(world: World, folder: Path) -> Any:
    """Tensors of the module in other memory are followed."""
    program = run(program_of(ADAMW, is_divided=True), 0, 2)
    for parameter in program.module.parameters():
        parameter.data = parameter.data.clone()
    return plain(run(program, 2, 4)) == straight(4)


# -- what is refused --------------------------------------------------------------------------


@check
def what_cannot_be_divided(world: World, folder: Path) -> Any:
    eager = error_of(lambda: program_of(ADAMW, is_divided=True, backend="eager"))
    module = Regression()
    module.second.weight = nn.Parameter(torch.randn(11, 74)[:, ::2])
    options = world.options(Options(backend="capture", show_progress=False, shard_optimizer=True))
    program = training_model(module, options, torch.optim.AdamW(module.parameters()))
    gaps = error_of(lambda: program(*batches_of(program)[0]))
    other = program_of(ADAMW, is_divided=world.is_first)
    differing = error_of(lambda: other(*batches_of(other)[0]))
    return [eager, gaps, differing]


# -- native code ------------------------------------------------------------------------------


@check
def files_of_programs(world: World, folder: Path) -> Any:
    """Export needs the whole state; code for other parts is refused, and keys tell them apart."""
    program = run(program_of(ADAMW, is_divided=True, backend="inductor"), 0, 2)
    path = folder / "program.kiln"
    told = [error_of(lambda: program.export(path))]
    program.gather_optimizer_state(to="first")
    if world.is_first:
        program.export(path)
    program.group.meet("export")

    def load(**changes: Any) -> Any:
        module = Regression()
        options = program.options.replace(**changes) if changes else None
        return torchkiln.load(path, module, ADAMW.optimizer(module), options)

    loaded = run(load(), 2, 4)
    told.append(error_of(lambda: load(shard_optimizer=False)))
    return [told, plain(loaded) == plain(run(program, 2, 4)), loaded.options.shard_optimizer]


@check
def straight_run(world: World, folder: Path) -> Any:
    return straight(6, is_divided=True)


def train_alone(folder: Path, num_ranks: int) -> None:
    """Leave a state after three calls, and the weights after three more from another one."""

    def go_on(program: Any, begin: int, end: int) -> Any:
        ranks = [batches_of(program, rank=rank) for rank in range(num_ranks)]
        for batches in list(zip(*ranks, strict=True))[begin:end]:
            program(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
        return program

    changes = {"is_divided": True, "replication_factor": num_ranks}
    torch.save(saved(go_on(program_of(ADAMW, **changes), 0, 3)), folder / "foreign.pt")
    if (path := folder / "divided.pt").exists():
        program = go_on(resumed(torch.load(path), **changes), 3, 6)
        (folder / "alone.json").write_text(json.dumps(plain(program)))


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2:3] == ["alone"]:
        train_alone(folder, int(sys.argv[3]))
        return
    world = distributed.start()
    told: dict[str, Any] = {}
    for name in sys.argv[2:] or CHECKS:
        try:
            told[name] = CHECKS[name](world, folder)
        except BaseException:
            told[name] = traceback.format_exc()
            (folder / f"rank{world.rank}.json").write_text(json.dumps(told))
            raise
    (folder / f"rank{world.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

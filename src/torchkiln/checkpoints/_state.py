"""State of optimisers and random generators as flat tensors and plain facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchkiln.checkpoints._precision import keep_state_precision
from torchkiln.core import CheckpointError


def optimizer_tensors(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the optimiser's state: tensors by flat name, and the rest as JSON values.

    Names follow torch's `state_dict`: `state/<number of the parameter>/<name>`. Tensors are the
    live ones, not copies.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {"kind": type(optimizer).__name__, "state": {}, "param_groups": []}
    for number, entries in state["state"].items():
        facts["state"][str(number)] = _divide(f"state/{number}", entries, tensors)
    for number, group in enumerate(state["param_groups"]):
        facts["param_groups"].append(_divide(f"param_groups/{number}", group, tensors))
    return tensors, facts


def _divide(prefix: str, values: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Put tensors into `tensors` and return what is left."""
    rest = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            tensors[f"{prefix}/{name}"] = value
        else:
            rest[name] = value
    return rest


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Give `optimizer` the state that `optimizer_tensors` returned; programs follow it.

    Raises:
        CheckpointError: It belongs to another kind of optimiser, or to other parameters.
    """
    kind = type(optimizer).__name__
    if facts["kind"] != kind:
        raise CheckpointError(
            f"the saved state is that of {facts['kind']}, the optimiser is {kind}; use the same"
        )
    now = optimizer.param_groups
    sizes = [len(group["params"]) for group in now]
    saved_sizes = [len(group["params"]) for group in facts["param_groups"]]
    if sizes != saved_sizes:
        raise CheckpointError(
            f"the saved optimiser has groups of {saved_sizes} parameters, this one of {sizes}; "
            "build it for the same model"
        )
    groups = [
        {**_as_before(saved, group), **_below(f"param_groups/{number}", tensors)}
        for number, (saved, group) in enumerate(zip(facts["param_groups"], now, strict=True))
    ]
    state = {
        int(number): {**values, **_below(f"state/{number}", tensors)}
        for number, values in facts["state"].items()
    }
    keep_state_precision(optimizer)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = prefix + "/"
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}


def _as_before(saved: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved values of a group; JSON made lists of tuples such as `betas`."""
    return {
        name: tuple(value) if isinstance(group.get(name), tuple) else value
        for name, value in saved.items()
    }


def random_state() -> dict[str, Tensor]:
    """Return the states of torch's generators, one a device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda:{index}"] = state
    return states


def set_random_state(states: Mapping[str, Tensor]) -> None:
    """Let torch's generators go on where `random_state` was taken; devices not here are skipped."""
    torch.set_rng_state(states["cpu"])
    for name, state in states.items():
        device = torch.device(name)
        if device.type == "cuda" and (device.index or 0) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, device)

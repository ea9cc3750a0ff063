"""What each process has for itself in a checkpoint of all: random numbers, buffers, its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchkiln.checkpoints import random_state
from torchkiln.training._buffers import Buffers, differing
from torchkiln.training._history import below

RANKS = "ranks"
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankState:
    """What one process has for itself.

    Args:
        random: States of torch's generators.
        loader: How far its batches are, in JSON types.
        loader_tensors: What else belongs to that.
        buffers: Of its modules, where they are not those of all.
    """

    random: Tensors
    loader: Mapping[str, Any]
    loader_tensors: Tensors = field(default_factory=dict)
    buffers: Buffers = field(default_factory=dict)


def to_checkpoint(states: Sequence[RankState]) -> tuple[Tensors, dict[str, Any]]:
    """Return tensors, and facts in JSON types.

    What rank 0 has stands where a run of one process has it, so that both are read alike.
    """
    first, *others = states
    tensors = {
        **_under("random", first.random),
        **_under("loader", first.loader_tensors),
    }
    facts: dict[str, Any] = {"loader": first.loader}
    if not others:
        return tensors, facts
    for rank, state in enumerate(others, 1):
        tensors |= _under(f"{RANKS}/{rank}/random", state.random)
        tensors |= _under(f"{RANKS}/{rank}/loader", state.loader_tensors)
    for rank, buffers in enumerate(differing([state.buffers for state in states])):
        tensors |= _under(f"{RANKS}/{rank}/buffers", buffers)
    facts[RANKS] = {
        "size": len(states),
        "seed": torch.initial_seed(),
        "loaders": [state.loader for state in others],
    }
    return tensors, facts


def from_checkpoint(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], rank: int, size: int
) -> RankState:
    """Return what process `rank` of `size` goes on with.

    If there were another number of processes, those that were there keep their random numbers, the
    others get new ones, and all have the averaged buffers of the model.
    """
    ranks = facts.get(RANKS, {"size": 1, "seed": torch.initial_seed(), "loaders": []})
    was_there = rank < ranks["size"]
    is_same_world = size == ranks["size"]
    of_rank = f"{RANKS}/{rank}/" if rank and was_there else ""
    loaders = [facts["loader"], *ranks["loaders"]]
    random = below(f"{of_rank}random/", tensors)
    return RankState(
        random=random if was_there else _new_random_state(ranks["seed"], rank),
        loader=loaders[rank] if is_same_world else _of_any_process(facts["loader"]),
        loader_tensors=below(f"{of_rank}loader/", tensors),
        buffers=below(f"{RANKS}/{rank}/buffers/", tensors) if is_same_world else {},
    )


def _of_any_process(loader: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position of a loader, without the checksum of a batch that is cut differently."""
    return {**loader, "last_batch": None} if "last_batch" in loader else dict(loader)


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of a process: another one for each, and that of the run for rank 0."""
    if rank == 0:
        return seed
    # Mixed rather than added: rank 1 of one run must not repeat rank 0 of the next.
    mixed = np.random.SeedSequence((seed % 2**64, rank)).generate_state(1, np.uint64)
    return int(mixed[0]) % 2**63


def _new_random_state(seed: int, rank: int) -> Tensors:
    # What is on other devices here is as it was: only who trained there has numbers to repeat.
    generator = torch.Generator().manual_seed(rank_seed(seed, rank))
    return {**random_state(), "cpu": generator.get_state()}


def _under(part: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{part}/{name}": tensor for name, tensor in tensors.items()}

"""Becoming one of several processes that train one model.

All of them must build the same program, begin with the same weights and state, and draw different
random numbers. Everything here is called by all of them, in the same order.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchkiln.core import (
    Backend,
    DistributedError,
    Options,
    OptionsError,
    ScratchDirectory,
    __version__,
    warn_user,
)
from torchkiln.core._launch import launched
from torchkiln.distributed import Group, current, group_of
from torchkiln.distributed._members import this_member
from torchkiln.runtime.call._metadata import node_to_json
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._generator import generator_state, set_generator_state
from torchkiln.runtime.optim._binding import OptimizerBinding
from torchkiln.runtime.optim._replicas import take_state_of_first

# Options that may differ from process to process. All others shape the updates, which must be the
# same everywhere.
MAY_DIFFER = {
    "process_id": "tells the processes apart",
    "device": "processes of one host have different devices; kinds of devices are compared",
    "random_seed": "the weights of rank 0 count, and processes draw different numbers anyway",
    "cache_dir": "hosts have different folders",
    "cache_limit_bytes": "hosts have different disks",
    "trusted_dirs": "hosts have different folders",
    "profile_dir": "one process may write a report while the others do not",
    "show_progress": "one process draws for all",
    "recorded": "has no effect",
}

_has_warned = False


def find_group(options: Options, *, training: bool) -> Group | None:
    """Return the processes that a program with these options trains with; None: it is alone.

    Raises:
        DistributedError: There is no group of processes, though the options speak of several.
        OptionsError: The options do not say who this process is in its group, or its backend cannot
            divide an update among processes.
    """
    if not training and not options.is_divided:
        return None
    world = current()
    if not options.synchronizes:
        if options.num_processes == 1 and options.sync_gradients is None:
            _warn_of_lone_training(_num_started() if world is None else world.size)
        return None
    if world is None or world.size == 1:
        raise DistributedError(
            f"num_processes is {options.num_processes}, but this process has not joined others; "
            "call torchkiln.distributed.start() first, in a script that torchrun starts (torchrun "
            f"--standalone --nproc-per-node {options.num_processes} train.py), or say "
            "sync_gradients=False if each process is to train a model of its own"
        )
    if (world.size, world.rank) != (options.num_processes, options.process_id):
        raise OptionsError(
            f"the options say process {options.process_id} of {options.num_processes}, but this is "
            f"rank {world.rank} of {world.size}; use torchkiln.distributed.start().options(options)"
        )
    if options.shard_optimizer and options.backend is Backend.EAGER:
        raise OptionsError(
            "shard_optimizer=True needs a recorded step, which tells ahead which parameters an "
            "update changes; use backend='inductor' or backend='capture', or leave it out"
        )
    return group_of(world, options.collective_timeout_s)


def _num_started() -> int:
    """Return how many processes a launcher started, though this one did not join them."""
    try:
        launch = launched()
    except DistributedError:  # whoever starts them together is told what is wrong
        return 1
    return 1 if launch is None else launch.size


def _warn_of_lone_training(num_processes: int) -> None:
    global _has_warned
    if num_processes > 1 and not _has_warned:
        _has_warned = True
        warn_user(
            f"this is one of {num_processes} processes, but its options say num_processes=1, so it "
            "trains a model of its own; use world.options(options) of "
            "torchkiln.distributed.start() to train one model together, or say "
            "sync_gradients=False if that is meant"
        )


# -- the same program and the same state -----------------------------------------------------


def join(
    group: Group, step: StepFunction, optimizer: OptimizerBinding | None, num_notes: int
) -> None:
    """Make sure that all processes build the same program, and take the state of rank 0.

    Without an optimiser nothing is taken, but stages must begin with parts of the same model.

    Raises:
        DistributedError: On all ranks, if programs differ; it says in what.
    """
    described = describe(step, optimizer, num_notes)
    digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()
    if len(set(group.gather(digest))) > 1:
        group.require_same(
            "the program", described, "make model, optimiser and options alike on every rank"
        )
    if optimizer is None:
        _require_same_weights(group, step)
        return
    group.broadcast_([tensor for tensor in step.binding.tensors if _can_be_written(tensor)])
    optimizer.gather_what_was_divided()
    take_state_of_first(group, optimizer.optimizer)


def require_same_updates(group: Group, built: Built) -> None:
    """Make sure that the programs that were built update the same parameters.

    Forward's Python code may have done something else here than there. Sums of other parameters
    would be added crosswise.

    Raises:
        DistributedError: On all ranks, if not; it names the parameters.
    """
    reached = dict.fromkeys(built.metadata.updated, "reached")
    group.require_same(
        "the parameters that gradients reach",
        reached,
        "forward must do the same on every rank; do not let it depend on the rank",
    )


def _require_same_weights(group: Group, step: StepFunction) -> None:
    """Make sure that the stages of each pipeline are made from the same weights."""
    digest = 0
    for bound in [*step.binding.parameters, *step.binding.buffers]:
        content = bound.tensor.detach().contiguous().view(-1).view(torch.uint8)
        digest = zlib.crc32(content.cpu().numpy().tobytes(), digest)
    digests, stages = group.gather(digest), step.options.num_stages
    for first in range(0, len(digests), stages):
        if len(set(digests[first : first + stages])) > 1:
            raise DistributedError(
                f"the ranks {first} to {first + stages - 1}, which run the stages of one model, "
                "have different weights; load the same weights on all ranks, or seed torch alike "
                "before the model is made"
            )


def describe(
    step: StepFunction, optimizer: OptimizerBinding | None, num_notes: int
) -> dict[str, str]:
    """Return whatever must be the same in all processes, in short texts by names for people."""
    told = {"version of Torchkiln": __version__, "version of torch": str(torch.__version__)}
    told["number of notes"] = str(num_notes)
    told |= {
        f"option {name}": str(value)
        for name, value in step.options.to_dict().items()
        if name not in MAY_DIFFER
    }
    groups = {} if optimizer is None else optimizer.group_of_parameters()
    for index, bound in enumerate(step.binding.bound):
        tensor, name = bound.tensor, bound.name
        told[f"tensor {index} ({name})"] = f"{_short(tensor.dtype)}{list(tensor.shape)}"
        # Gradient sums lie in memory as the parameters do, and are added element by element.
        told[f"strides of {name}"] = str(list(tensor.stride()))
        told[f"device of {name}"] = tensor.device.type
        told[f"group of {name}"] = str(groups.get(id(tensor)) if tensor.requires_grad else None)
    if optimizer is not None:
        told |= optimizer.describe()
    for form in step.signature.forms:
        told[f"argument {form.name}"] = f"{_short(form.dtype)}{list(form.shape)}"
        told[f"memory format of {form.name}"] = _short(form.memory_format)
    try:
        told["arguments"] = json.dumps(node_to_json(step.signature.node))
    except TypeError:  # they hold objects, which need not have a form that can be compared
        told["arguments"] = str(len(step.signature.forms))
    return told


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _can_be_written(tensor: Tensor) -> bool:
    """Whether no two elements share memory, as those of a constant that was expanded do."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return all(step or size <= 1 for size, step in sizes)


# -- one compilation for each host -----------------------------------------------------------


class CommonCache:
    """The folder in which the first process of each host leaves what it compiled.

    It is the user's cache, or a temporary one as long as the program lives.
    """

    def __init__(self, group: Group, options: Options) -> None:
        self._scratch: ScratchDirectory | None = None
        self.path = options.cache_dir
        if options.backend is not Backend.INDUCTOR or any(group.gather(options.cache_dir)):
            return
        world = group.world
        if world.local_rank == 0:
            self._scratch = ScratchDirectory()
        own = this_member(world.rank).place
        made = None if self._scratch is None else self._scratch.path
        found = [path for place, path in group.gather((own, made)) if place == own and path]
        # A folder of another container cannot be seen: then this process compiles for itself.
        self.path = next((path for path in found if path.is_dir()), None)

    def remove(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()


# -- different random numbers ----------------------------------------------------------------


def seed_generator(options: Options) -> None:
    """Seed torch's generator as the options say; further processes draw other numbers."""
    if options.random_seed is None:
        return
    copy = options.pipeline_id if options.synchronizes else 0
    torch.manual_seed(options.random_seed if copy == 0 else _seed(options.random_seed, copy))


def part_random_streams(group: Group, device: torch.device, num_stages: int = 1) -> None:
    """Let each copy of the model draw random numbers of its own.

    That is each process, or each pipeline: its stages go on with the numbers of the first one, so
    that they make the same batches. A copy whose generator is in the state of a lower one's is
    seeded with (seed, its number). The first one draws the numbers that it would draw alone.
    """
    own = generator_state(device).numpy().tobytes(), torch.initial_seed()
    told = group.gather(own)
    states = [state for state, _ in told[::num_stages]]
    copy = group.world.rank // num_stages
    if states[copy] in states[:copy]:
        torch.manual_seed(_seed(told[copy * num_stages][1], copy))
    elif num_stages > 1:
        state = np.frombuffer(bytearray(states[copy]), dtype=np.uint8)
        set_generator_state(device, torch.from_numpy(state))


def _seed(seed: int, rank: int) -> int:
    """Return a seed that has nothing to do with that of any other rank."""
    words = np.random.SeedSequence((seed % 2**64, rank)).generate_state(1, np.uint64)
    return int(words[0])

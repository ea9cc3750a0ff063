"""Structural checks of the blocks that forward entered, as the original's compiler makes them.

They hold in one process, too, which runs all blocks itself, so that a program stays valid for the
original's hardware.
"""

from __future__ import annotations

import itertools

from poptorch._context import Run
from poptorch._division import Division
from poptorch._errors import Error
from poptorch._option_store import require
from poptorch._strategies import PipelinedExecution, _StagedExecution
from poptorch.enums import AutoStage
from poptorch.options import Options

_MAX_IPUS = 64


def check_blocks(run: Run, options: Options) -> None:
    """Check the recorded blocks against the execution strategy.

    Raises:
        AssertionError: for a block that the strategy does not list, or that lacks a device.
        Error: for a number of devices, an accumulation or iterations that do not fit.
    """
    if not run.blocks:
        return
    devices = _devices(run, options)
    _check_device_count(max(devices) + 1, options)
    if max(devices) > 0 and options.Distributed._num_ranks > 1 and Division.of(options) is None:
        raise Error(
            f"the model uses {max(devices) + 1} IPUs, and several processes train it, but nothing "
            "says how many of them share a replica; start it with poprun --ipus-per-replica="
            f"{max(devices) + 1}, or name the stages: "
            "poptorch.PipelinedExecution(poptorch.Stage(...), poptorch.Stage(...))"
        )
    if isinstance(options._execution_strategy, PipelinedExecution):
        _check_pipeline(run.training, devices, options)


def _devices(run: Run, options: Options) -> list[int]:
    """Return the device of each block in the order of execution, each block once."""
    strategy = options._execution_strategy
    automatic = strategy._auto_stage if isinstance(strategy, _StagedExecution) else None
    # The same block may be entered for every micro-batch; its first entry is its place.
    blocks = dict(reversed(run.blocks))
    ordered = list(dict.fromkeys(name for name, _ in run.blocks))
    devices = []
    for position, name in enumerate(ordered):
        device = blocks[name]
        if automatic is AutoStage.AutoIncrement:
            device = position if device is None else device
        elif automatic is AutoStage.SameAsIpu:
            # A model with a single block needs no device number.
            require(
                device is not None or len(ordered) == 1,
                f"Block {name!r} has no ipu_id, which AutoStage.SameAsIpu needs",
                device,
                "an ipu_id in Block or BeginBlock, or AutoStage.AutoIncrement",
            )
        else:
            stage = strategy.stage(name)
            if stage._ipu is not None:
                device = stage._ipu
        devices.append(0 if device is None else device)
    return devices


def _check_device_count(count: int, options: Options) -> None:
    if count & (count - 1) and not options.auto_round_num_ipus:
        raise Error(
            f"The model uses {count} IPUs, which is not a power of 2; use "
            f"{1 << count.bit_length()} or call Options.autoRoundNumIPUs()"
        )
    if count > _MAX_IPUS:
        raise Error(f"The model uses {count} IPUs; a process can have {_MAX_IPUS} at most")


def check_accumulation(stages: int, accumulation: int) -> None:
    """Refuse an update of too few micro-batches to fill a pipeline.

    Raises:
        Error: with the original's words.
    """
    if accumulation < 2 * stages - 1:
        raise Error(
            "gradientAccumulation must be greater than or equal to the number of pipeline stages: "
            f"{stages} forward and {stages - 1} backward stages need {2 * stages - 1}, got "
            f"{accumulation}; raise Training.gradientAccumulation or use ShardedExecution"
        )


def _check_pipeline(training: bool, devices: list[int], options: Options) -> None:
    switches = sum(a != b for a, b in itertools.pairwise(devices))
    if switches == 0:
        return
    stages = switches + 1
    accumulation = options.Training.gradient_accumulation
    if training:
        check_accumulation(stages, accumulation)
    if not training and options.device_iterations < stages:
        raise Error(
            "deviceIterations must be greater than or equal to the number of pipeline stages: "
            f"{stages} stages, got {options.device_iterations}; raise deviceIterations or use "
            "ShardedExecution"
        )

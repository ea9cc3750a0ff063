"""How a model is divided into stages: the form of that option, and what must hold for it."""

from __future__ import annotations

import enum
from typing import Any

from torchkiln.core._choices import shown
from torchkiln.core._errors import OptionsError

# Names of the blocks of each stage, in the order of stages.
Pipeline = tuple[tuple[str, ...], ...]


class PipelineSchedule(enum.Enum):
    """In which order a stage runs the micro-batches of an update."""

    PIPELINED = "pipelined"  # one forward, one backward (1F1B): all stages work at the same time
    SEQUENTIAL = "sequential"  # one micro-batch at a time: the least memory


def to_pipeline(value: Any) -> Pipeline | None:
    """Return a pipeline as tuples of names of blocks.

    Raises:
        OptionsError: It is no list of stages, a stage is empty, or a block comes twice.
    """
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise _refusal(value)
    stages = tuple(_to_stage(entry, value) for entry in value)
    names = [name for stage in stages for name in stage]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionsError(
            f"pipeline names the block {twice[0]!r} twice; a block belongs to one stage"
        )
    return stages


def _to_stage(entry: Any, value: Any) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, list | tuple) and entry and all(isinstance(name, str) for name in entry):
        return tuple(entry)
    raise _refusal(value)


def _refusal(value: Any) -> OptionsError:
    return OptionsError(
        "pipeline must be None or a list of stages, each the name of a block or a list of such "
        f"names, got {shown(value)}; module.named_modules() lists the names of modules"
    )


def check_processes(num_stages: int, num_processes: int) -> None:
    """Refuse a number of processes that does not make whole pipelines.

    Raises:
        OptionsError: The message says which numbers would do.
    """
    if num_processes % num_stages:
        below = num_processes // num_stages * num_stages
        numbers = [str(number) for number in (below, below + num_stages) if number]
        raise OptionsError(
            f"{num_processes} processes cannot run a pipeline of {num_stages} stages, each of "
            f"which needs one; start {' or '.join(numbers)} processes, or divide the model into "
            "another number of stages"
        )


def check_micro_batches(num_stages: int, num_micro_batches: int) -> None:
    """Refuse an update of too few micro-batches to keep all stages of a pipeline at work.

    Raises:
        OptionsError: The message says how many are needed.
    """
    needed = 2 * num_stages - 1
    if num_micro_batches < needed:
        raise OptionsError(
            f"a pipeline of {num_stages} stages needs at least {needed} micro-batches in each "
            f"update ({num_stages} forward and {num_stages - 1} backward stages), but "
            f"gradient_accumulation x replication_factor is {num_micro_batches}; raise "
            'gradient_accumulation, or run one micro-batch at a time with pipeline_schedule="'
            f'{PipelineSchedule.SEQUENTIAL.value}"'
        )

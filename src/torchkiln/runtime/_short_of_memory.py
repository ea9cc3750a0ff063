"""Memory that is not there, told in plain words, with what helps."""

from __future__ import annotations

import errno
from types import TracebackType
from typing import final

import torch

from torchkiln.core import Backend, DistributedError, Options, Precision, ShortOfMemory

# What libraries under torch call it: torch's allocator (Linux, Windows), C++, the C library.
_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "Cannot allocate memory",
    "out of memory",
)


@final
class naming_memory:  # noqa: N801 - used like a function
    """Turn an error about missing memory into `ShortOfMemory`, which names remedies.

    Args:
        action: What is done, as the beginning of a sentence.
        options: Of the program.
        training: Whether it trains.
    """

    __slots__ = ("_action", "_options", "_training")

    def __init__(self, action: str, options: Options, training: bool) -> None:
        self._action = action
        self._options = options
        self._training = training

    def __enter__(self) -> None:
        """Nothing to do: this is in the path of each call."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise ShortOfMemory in the place of what torch, Python and the system say."""
        if error is None or isinstance(error, ShortOfMemory) or not is_short_of_memory(error):
            return
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        found = f"{self._action} ran out of memory ({said})"
        helpful = _remedies(self._options, self._training)
        raise ShortOfMemory(
            f"{found}. What helps: {'; '.join(helpful)}. program.memory_report(...) and "
            "`torchkiln fit` say how much each way needs",
            found,
        ) from error


def is_short_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, DistributedError):
        return False  # another process, whose error this one quotes
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def _remedies(options: Options, training: bool) -> list[str]:
    """Return what needs less memory, as far as it is not switched on."""
    found = ["smaller micro-batches"]
    if training:
        found[0] += ", with gradient_accumulation for the same weight update"
    if options.precision in (None, Precision.FLOAT32):
        found.append('half precision, Options(precision="bfloat16")')
    # Plain eager steps are not recorded, so nothing can be repeated or divided.
    is_recorded = options.backend is not Backend.EAGER
    if training and is_recorded and not options.recompute:
        found.append('recomputation, Options(recompute="auto")')
    is_shared = options.num_processes > 1 and not options.is_divided
    if training and is_recorded and is_shared and not options.shard_optimizer:
        found.append("a part of the optimiser's state for each, Options(shard_optimizer=True)")
    # A divided optimiser and stages do not go together.
    if is_recorded and not options.shard_optimizer:
        number = "more stages" if options.is_divided else "two stages in two processes"
        found.append(f"{number}, Options(pipeline=[...])")
    return found

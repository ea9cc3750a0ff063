"""PopTorch's exceptions, and how Torchkiln's become them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from torchkiln.core import (
    ArgumentError,
    BatchSizeError,
    DynamicShapeError,
    OptionsError,
    TorchkilnError,
    TrustError,
    to_choice,
)

_PYTHON_ERROR = "poptorch_py_error"
# Kinds of ArgumentError that the original asserts on; a missing argument is an Error.
_MISUSED_SIGNATURE = ("too_many", "unknown", "duplicate")
_RECOVERY_ACTIONS = ("IPU_RESET", "LINK_RESET", "PARTITION_RESET", "FULL_RESET")


# The engine speaks of its own options; people with PopTorch programs look for these.
_WORDS = {
    "synthetic_data=True": "enableSyntheticData(True)",
    "synthetic_data": "enableSyntheticData",
    "check_finite": "enableFloatingPointExceptions",
    "device_iterations": "deviceIterations",
    "gradient_accumulation": "gradientAccumulation",
    "replication_factor": "replicationFactor",
    "output_period": "output_return_period",
    "options.random_seed": "options.randomSeed",
    "num_processes": "Distributed.numProcesses",
    "process_id": "Distributed.processId",
    "shard_optimizer": "useReplicatedTensorSharding",
    "sync_gradients=False": "Distributed.disable()",
    "torchkiln.distributed.start().options(options)": "popdist.poptorch.Options()",
    "torchkiln.distributed.start()": "popdist.init()",
    "world.options(options)": "popdist.poptorch.Options()",
    "tensor_names()": "getTensorNames()",
    "register_container(": "poptorch.registerCustomArgParser(",
    "register_container": "poptorch.registerCustomArgParser",
    "training_model": "trainingModel",
    "inference_model": "inferenceModel",
    "a program runs": "A model runs",
    "create a new one": "create a new wrapper",
    "new program": "new wrapper",
}
_WORD = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, _WORDS)) + ")")


class Error(Exception):
    """Whatever a wrapped model cannot do; not a RuntimeError, as programs expect.

    `message` is the bare text; `str()` adds the type in front of it.
    """

    def __init__(self, message: str, type: str = _PYTHON_ERROR, location: str = "") -> None:
        super().__init__(message, type, location)
        self.message = message
        self.type = type
        self.location = location

    def __str__(self) -> str:
        text = f"'{self.type}': {self.message}"
        return f"{text}\nin {self.location}" if self.location else text


class RecoverableError(Error):
    """A device failure that a reset cures; never raised here, kept for `except` clauses."""

    def __init__(
        self,
        message: str,
        recovery_action: str,
        type: str = _PYTHON_ERROR,
        location: str = "",
    ) -> None:
        super().__init__(message, type, location)
        to_choice(_RECOVERY_ACTIONS, recovery_action, "recovery_action", ValueError)
        self.args = (message, recovery_action, type, location)
        self.recovery_action = recovery_action


class UnrecoverableError(Error):
    """A device failure that no reset cures; never raised here, kept for `except` clauses."""


class ShapeError(Error, ValueError):
    """Forward computes a size from data; PyG raises a ValueError for that, which programs catch."""


class WorkerStartError(Error, AssertionError):
    """A dataset cannot be read ahead; programs catch one or the other."""


class ConfigFileError(Exception):
    """A line of an options file cannot be applied."""


def createPoptorchError(msg: str) -> Error:
    """Return (not raise) an `Error` that carries `msg`."""
    return Error(msg)


def in_original_words(error: Exception) -> str:
    """Return the message of an engine's exception with PopTorch's names for things."""
    text = str(error)
    if isinstance(error, TrustError) and error.option:
        text = text.replace(error.option, "")  # poptorch.Options does not have it
    return _WORD.sub(lambda found: _WORDS[found.group()], text)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise what PopTorch programs expect for whatever the engine raises in the block.

    The engine's own exception stays reachable as `__cause__`; public methods of programs keep
    their tracebacks short, and leave it in `__context__` only.
    """
    try:
        yield
    except BatchSizeError as error:
        raise AssertionError(in_original_words(error)) from error
    except ArgumentError as error:
        if getattr(error, "kind", "") in _MISUSED_SIGNATURE:
            raise AssertionError(str(error)) from error
        if getattr(error, "kind", "") == "missing" and "Mandatory" not in str(error):
            raise  # Python's own TypeError, for a forward with *args or **kwargs
        raise Error(str(error)) from error
    except OptionsError as error:
        message = f"These options cannot make a program: {in_original_words(error)}"
        raise Error(message) from error
    except DynamicShapeError as error:
        raise ShapeError(in_original_words(error)) from error
    except TorchkilnError as error:
        raise Error(in_original_words(error)) from error

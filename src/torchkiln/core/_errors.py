"""The exception tree: one base, and each leaf is also the builtin a caller would expect."""

from __future__ import annotations


class TorchkilnError(Exception):
    """Anything that Torchkiln raises on purpose."""


class OptionsError(TorchkilnError, ValueError):
    """An option has a value that no program could run with."""


class ArgumentError(TorchkilnError, TypeError):
    """A call does not fit the signature of the module's forward."""


class BatchSizeError(TorchkilnError, ValueError):
    """A combined batch cannot be cut into the micro-batches that the options ask for."""


class BatchTooLarge(TorchkilnError, RuntimeError):  # noqa: N818 - reads as the event it reports
    """Graphs do not fit into the fixed size that a batch was given."""


class StoreError(TorchkilnError, ValueError):
    """Graphs cannot be kept in a store, or a stored file is damaged or of another kind."""


class Unreadable(StoreError):  # noqa: N818 - a finding for the caller, who knows the remedy
    """A file does not hold what it should; the message says why, not what to do about it."""


class ShapeChanged(TorchkilnError, ValueError):  # noqa: N818 - reads as the event it reports
    """A call differs from the one the program was compiled for."""


class DynamicShapeError(TorchkilnError, ValueError):
    """Forward contains an operation whose result size or control flow depends on data."""


class CaptureError(TorchkilnError, RuntimeError):
    """Forward cannot be recorded as one static graph, for another reason than dynamic shapes."""


class LossError(TorchkilnError, ValueError):
    """The loss to differentiate could not be told from the outputs."""


class NoLossError(LossError):
    """Forward computed no loss."""


class MultipleLossesError(LossError):
    """Forward computed several independent losses."""


class OptimizerError(TorchkilnError, ValueError):
    """The optimiser is not supported, or changed in a way that needs a new program."""


class NonFiniteError(TorchkilnError, FloatingPointError):
    """A loss or output is NaN or infinite while `check_finite` is on."""


class NotCompiledError(TorchkilnError, RuntimeError):
    """The program has no executable yet."""


class CompileError(TorchkilnError, RuntimeError):
    """Code generation or the C++ compiler failed."""


class ShortOfMemory(TorchkilnError, MemoryError):  # noqa: N818 - reads as the event it reports
    """A program found no memory for what it had to build or to run; the message says what helps.

    Args:
        message: What happened, and remedies.
        found: What happened, for programs that know remedies in words of their own.
    """

    def __init__(self, message: str, found: str = "") -> None:
        super().__init__(message)
        self.found = found or message


class ExecutableError(TorchkilnError, RuntimeError):
    """An exported or cached executable is damaged, foreign, or does not fit the module."""


class TrustError(ExecutableError):
    """Native code lies where somebody else could have written it, so it is not run."""

    # The part of the message that names an option, for façades whose users have none.
    option = ""


class WorkerError(TorchkilnError, RuntimeError):
    """A data-loading process failed; the message carries its traceback."""


class WriteError(TorchkilnError, OSError):
    """A file cannot be written; what was there before is as it was."""


class CheckpointError(TorchkilnError, RuntimeError):
    """A checkpoint cannot be written, is damaged, is not there, or does not fit the run."""


class DistributedError(TorchkilnError, RuntimeError):
    """The processes of a run do not find each other, lost one of them, or do not agree."""

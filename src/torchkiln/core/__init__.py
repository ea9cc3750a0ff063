"""What everything may import: options, errors, atomic files, trace hooks. No torch here."""

from torchkiln.core._array_files import read_npy, read_npz
from torchkiln.core._capture_contexts import add_capture_context, capture_contexts
from torchkiln.core._errors import (
    ArgumentError,
    BatchSizeError,
    BatchTooLarge,
    CaptureError,
    CheckpointError,
    CompileError,
    DynamicShapeError,
    ExecutableError,
    LossError,
    MultipleLossesError,
    NoLossError,
    NonFiniteError,
    NotCompiledError,
    OptimizerError,
    OptionsError,
    ShapeChanged,
    StoreError,
    TorchkilnError,
    WorkerError,
)
from torchkiln.core._files import (
    ScratchDirectory,
    atomic_path,
    file_lock,
    sha256_file,
    write_atomic,
)
from torchkiln.core._machine import cpu_features
from torchkiln.core._options import (
    Anchor,
    Backend,
    InputGrouping,
    Options,
    OutputMode,
    Precision,
    Reduction,
)
from torchkiln.core._text_formats import check_yaml, parse_json, parse_yaml, read_text
from torchkiln.core._trace import Span, add_listener, span
from torchkiln.core._warnings import warn_user

__all__ = [
    # options
    "Anchor",
    "Backend",
    "InputGrouping",
    "Options",
    "OutputMode",
    "Precision",
    "Reduction",
    # errors
    "ArgumentError",
    "BatchSizeError",
    "BatchTooLarge",
    "CaptureError",
    "CheckpointError",
    "CompileError",
    "DynamicShapeError",
    "ExecutableError",
    "LossError",
    "MultipleLossesError",
    "NoLossError",
    "NonFiniteError",
    "NotCompiledError",
    "OptimizerError",
    "OptionsError",
    "ShapeChanged",
    "StoreError",
    "TorchkilnError",
    "WorkerError",
    # what to switch on while a forward is recorded
    "add_capture_context",
    "capture_contexts",
    # files
    "ScratchDirectory",
    "atomic_path",
    "file_lock",
    "sha256_file",
    "write_atomic",
    # reading what may be damaged
    "check_yaml",
    "parse_json",
    "parse_yaml",
    "read_npy",
    "read_npz",
    "read_text",
    # machine
    "cpu_features",
    # trace hooks
    "Span",
    "add_listener",
    "span",
    # warnings
    "warn_user",
]

"""What everything may import: options, errors, atomic files, trace hooks. No torch here."""

from torchkiln.core._array_files import read_npy, read_npz
from torchkiln.core._capture_contexts import add_capture_context, capture_contexts
from torchkiln.core._choices import to_choice
from torchkiln.core._compiler import run_compiler
from torchkiln.core._errors import (
    ArgumentError,
    BatchSizeError,
    BatchTooLarge,
    CaptureError,
    CheckpointError,
    CompileError,
    DistributedError,
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
    ShortOfMemory,
    StoreError,
    TorchkilnError,
    TrustError,
    Unreadable,
    WorkerError,
    WriteError,
)
from torchkiln.core._executable_folder import default_cache_dir
from torchkiln.core._extensions import Extends, load_extensions
from torchkiln.core._files import (
    atomic_path,
    file_lock,
    make_folders,
    sha256_file,
    write_atomic,
)
from torchkiln.core._instrument import instrument
from torchkiln.core._loss_inputs import LossInputs, add_loss_review, review_loss
from torchkiln.core._machine import cpu_features
from torchkiln.core._options import (
    Anchor,
    Backend,
    InputGrouping,
    Options,
    OutputMode,
    Precision,
    Reduction,
    ReductionOrder,
)
from torchkiln.core._pipeline_options import PipelineSchedule
from torchkiln.core._places import process_cache_dir, user_cache_dir, writable_cache_dir
from torchkiln.core._pretended_hardware import PRETEND_VARIABLE, pretends_hardware
from torchkiln.core._sealed import SealBroken, read_sealed, write_sealed
from torchkiln.core._stopping import run_stoppable
from torchkiln.core._temporary import (
    ScratchDirectory,
    clean_leftovers,
    clean_leftovers_once,
    is_temporary,
    temporary_folder,
)
from torchkiln.core._text_formats import check_yaml, parse_json, parse_yaml, read_json, read_text
from torchkiln.core._trace import (
    Span,
    Tracer,
    add_listener,
    add_tracer,
    counter,
    hand_over,
    instant,
    is_traced,
    name_process,
    span,
    take_over,
)
from torchkiln.core._trust import (
    check_trusted,
    check_trusted_folder,
    is_shared,
    private_folder,
)
from torchkiln.core._version import __version__
from torchkiln.core._warnings import warn_user

__all__ = [
    "PRETEND_VARIABLE",
    "pretends_hardware",
    "__version__",
    # options
    "Anchor",
    "Backend",
    "InputGrouping",
    "Options",
    "OutputMode",
    "Precision",
    "Reduction",
    "PipelineSchedule",
    "ReductionOrder",
    # errors
    "ArgumentError",
    "BatchSizeError",
    "BatchTooLarge",
    "CaptureError",
    "CheckpointError",
    "CompileError",
    "DistributedError",
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
    "ShortOfMemory",
    "StoreError",
    "TorchkilnError",
    "TrustError",
    "WorkerError",
    "WriteError",
    # what a caller gave
    "to_choice",
    # what to switch on while a forward is recorded
    "add_capture_context",
    "capture_contexts",
    # who looks at the loss of a program
    "LossInputs",
    "add_loss_review",
    "review_loss",
    # higher rooms that serve libraries
    "Extends",
    "load_extensions",
    # processes
    "run_compiler",
    "run_stoppable",
    # files
    "ScratchDirectory",
    "SealBroken",
    "atomic_path",
    "clean_leftovers",
    "clean_leftovers_once",
    "file_lock",
    "is_temporary",
    "make_folders",
    "read_sealed",
    "sha256_file",
    "temporary_folder",
    "write_atomic",
    "write_sealed",
    # reading what may be damaged
    "Unreadable",
    "check_yaml",
    "parse_json",
    "parse_yaml",
    "read_json",
    "read_npy",
    "read_npz",
    "read_text",
    # who may have written native code
    "check_trusted",
    "check_trusted_folder",
    "is_shared",
    "private_folder",
    # machine
    "cpu_features",
    "process_cache_dir",
    "default_cache_dir",
    "user_cache_dir",
    "writable_cache_dir",
    # trace hooks
    "Span",
    "Tracer",
    "add_listener",
    "add_tracer",
    "counter",
    "hand_over",
    "instant",
    "instrument",
    "is_traced",
    "name_process",
    "span",
    "take_over",
    # warnings
    "warn_user",
]

"""PopTorch's names on Torchkiln: programs that say `import poptorch` run without the hardware.

Translation only: what a name does is described in docs/poptorch.md, where it is done is torchkiln.
"""

import sys

from poptorch import _poplar_executor as _poplar_executor  # programs import classes from there
from poptorch import enums, optim, options, poptorch_core, profiling
from poptorch._args import (
    ICustomArgParser,
    registerCustomArgParser,
    registerGeometricCustomArgParsers,
)
from poptorch._blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    BlockId,
    LegacyBeginBlockFn,
    module_repr,
    removeBlocks,
)
from poptorch._blocks import print_module as print
from poptorch._dataloader import AsynchronousDataAccessor, DataLoader
from poptorch._errors import (
    ConfigFileError,
    Error,
    RecoverableError,
    UnrecoverableError,
    createPoptorchError,
)
from poptorch._executor import PoplarExecutor, inferenceModel, trainingModel
from poptorch._hardware import ipuHardwareIsAvailable, ipuHardwareVersion
from poptorch._hooks import registerPostCompileHook, registerPreCompileHook
from poptorch._loading import load
from poptorch._logging import logger, setLogLevel
from poptorch._ops import (
    CPU,
    cond,
    ctc_beam_search_decoder,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    identity_loss,
    ipu_print_tensor,
    isRunningOnIpu,
    nearest,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from poptorch._option_files import let_files_name
from poptorch._scopes import (
    Attribute,
    MultiConv,
    NameScope,
    custom_op,
    getIpuTensorId,
)
from poptorch._shadow import warn_if_shadowing
from poptorch._strategies import (
    ParallelPhasedExecution,
    Phase,
    PhasedExecution,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from poptorch._version import __version__
from poptorch.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from poptorch.options import Options, TensorLocationSettings

warn_if_shadowing()
let_files_name(poptorch=sys.modules[__name__])
registerGeometricCustomArgParsers()

__all__ = [
    "__version__",
    # sub-modules
    "enums",
    "optim",
    "options",
    "poptorch_core",
    "profiling",
    # models
    "PoplarExecutor",
    "inferenceModel",
    "isRunningOnIpu",
    "load",
    "trainingModel",
    # options
    "Attribute",
    "ConfigFileError",
    "Options",
    "TensorLocationSettings",
    # data
    "AsynchronousDataAccessor",
    "DataLoader",
    # operations
    "CPU",
    "MultiConv",
    "NameScope",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "identity_loss",
    "ipu_print_tensor",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    # partitioning
    "BeginBlock",
    "Block",
    "BlockFunction",
    "BlockId",
    "LegacyBeginBlockFn",
    "ParallelPhasedExecution",
    "Phase",
    "PhasedExecution",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "removeBlocks",
    # input types
    "ICustomArgParser",
    "registerCustomArgParser",
    "registerGeometricCustomArgParsers",
    # hooks
    "registerPostCompileHook",
    "registerPreCompileHook",
    # errors
    "Error",
    "RecoverableError",
    "UnrecoverableError",
    "createPoptorchError",
    # the rest
    "getIpuTensorId",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "logger",
    "module_repr",
    "print",
    "setLogLevel",
    # enumerations
    "AutoStage",
    "CommGroupType",
    "ConnectionType",
    "DataLoaderMode",
    "HalfFloatCastingBehavior",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "OutputMode",
    "OverlapMode",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
    "VariableRetrievalMode",
]

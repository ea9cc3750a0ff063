"""Every enumeration of the original, with its values."""

from __future__ import annotations

import enum


class OutputMode(enum.IntEnum):
    """Which micro-batches' outputs a call returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4  # All for inference, Final for training


class DataLoaderMode(enum.IntEnum):
    """Whether batches are loaded when asked for, or ahead of time by another process."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(enum.IntEnum):
    """How an asynchronous loader's process is started and hands over tensors."""

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class ReductionType(enum.IntEnum):
    """How gradients of micro-batches and replicas are combined."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(enum.IntEnum):
    """When a mean of gradients is divided; all three give the same mathematical value."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class ConnectionType(enum.IntEnum):
    """When a device is attached; `Never` only compiles."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(enum.IntEnum):
    """Recorded; there is one device."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class AutoStage(enum.IntEnum):
    """How blocks become stages when a strategy lists none."""

    SameAsIpu = 0
    AutoIncrement = 1


class Liveness(enum.IntEnum):
    """Recorded; tensors stay where they are."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(enum.Enum):
    """Recorded; host and device share one memory here."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class MatMulSerializationMode(enum.Enum):
    """Which dimension a serialised product is cut along; the value is the same for all."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class MultiConvPlanType(enum.IntEnum):
    """Recorded; convolutions are planned by the backend."""

    Parallel = 0
    Serial = 1


class CommGroupType(enum.IntEnum):
    """Which replicas form a group."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class VariableRetrievalMode(enum.IntEnum):
    """Which replicas' copies of a grouped parameter are read back."""

    OnePerGroup = 0
    AllReplicas = 2


class HalfFloatCastingBehavior(enum.IntEnum):
    """Deprecated in the original too; dtypes follow torch's own rules."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


__all__ = [
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

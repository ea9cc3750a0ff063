"""`popart` as far as optimum-graphcore uses it: numbers of two enumerations that options carry."""

from enum import IntEnum


class AccumulateOuterFragmentSchedule(IntEnum):
    """When updates of weights are scheduled."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class SubgraphCopyingStrategy(IntEnum):
    """When inputs of subgraphs are copied."""

    OnEnterAndExit = 0
    JustInTime = 1

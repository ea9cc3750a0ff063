"""Which instance this process is, out of how many, and joining the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from torchkiln import distributed
from torchkiln.commands._poprun_layout import InstanceLayout


def isPopdistEnvSet() -> bool:
    """Return whether `poprun`, torchrun or another launcher started this process."""
    return InstanceLayout.from_environment(os.environ) is not None


def init() -> None:
    """Join the other instances; a second call does nothing."""
    distributed.start()


def getInstanceIndex() -> int:
    """Return which instance this process is, from 0."""
    return current_layout().instance_index


def getNumInstances() -> int:
    """Return the number of instances."""
    return current_layout().num_instances


def getNumTotalReplicas() -> int:
    """Return the number of replicas of all instances together."""
    return current_layout().num_total_replicas


def getNumLocalReplicas() -> int:
    """Return the number of replicas of this instance."""
    return current_layout().num_local_replicas


def getReplicaIndexOffset() -> int:
    """Return the number of this instance's first replica among those of all instances."""
    return current_layout().replica_index_offset


def getNumIpusPerReplica() -> int:
    """Return what `poprun --ipus-per-replica` said; 1 if it said nothing."""
    return current_layout().num_ipus_per_replica


def checkNumIpusPerReplica(num_ipus_per_replica: int) -> None:
    """Raise RuntimeError if a program needs another number of IPUs than `poprun` was told."""
    told = getNumIpusPerReplica()
    if isPopdistEnvSet() and num_ipus_per_replica != told:
        raise RuntimeError(
            f"the program has {num_ipus_per_replica} IPUs per replica, but poprun was told {told}; "
            f"start it with poprun --ipus-per-replica={num_ipus_per_replica}"
        )


def getDeviceId(num_ipus_per_replica: int = 0) -> int:
    """Return 0, the processor's number in `gc-info -l`: instances share it."""
    if num_ipus_per_replica:
        checkNumIpusPerReplica(num_ipus_per_replica)
    return 0


def execute_on_instances(
    instances: Iterable[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a function on these instances only, and return its result; None on the others."""
    if getInstanceIndex() in instances:
        return function(*args, **kwargs)
    return None


def current_layout() -> InstanceLayout:
    """Return the layout of this run; one instance with one replica if nothing started several."""
    return InstanceLayout.from_environment(os.environ) or InstanceLayout()

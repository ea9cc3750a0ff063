"""PopDist's names on Torchkiln: which instance of a distributed program this is, out of how many.

Translation only: `poprun` starts the instances, `torchkiln.distributed` joins them, and
docs/popdist.md says what each name does. `popdist.poptorch` is imported by its own name.

That these existed in the original is certain from its documentation and from public programs:
isPopdistEnvSet, init, getInstanceIndex, getNumInstances, getNumTotalReplicas, getNumLocalReplicas,
getNumIpusPerReplica, checkNumIpusPerReplica, getReplicaIndexOffset, getDeviceId and
execute_on_instances. Not certain is what the getters did without a launcher: here they speak of one
instance with one replica.
"""

from popdist._instances import (
    checkNumIpusPerReplica,
    execute_on_instances,
    getDeviceId,
    getInstanceIndex,
    getNumInstances,
    getNumIpusPerReplica,
    getNumLocalReplicas,
    getNumTotalReplicas,
    getReplicaIndexOffset,
    init,
    isPopdistEnvSet,
)
from popdist._version import __version__

__all__ = [
    "__version__",
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "getDeviceId",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
]

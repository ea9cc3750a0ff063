"""`InstanceLayout`: how many instances and replicas a run has, by its environment. No torch.

`poprun` writes what `popdist` reads. In Graphcore's words an *instance* is a process, and each has
the same number of *replicas*, copies of the model that share every weight update. Where a replica
needs several IPUs, as the stages of a pipeline do, an instance is so many processes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, final

from torchkiln.core import DistributedError
from torchkiln.core._launch import launched

# Names of the original, as far as its documentation and public programs show them.
TOTAL_REPLICAS = "POPDIST_NUM_TOTAL_REPLICAS"
LOCAL_REPLICAS = "POPDIST_NUM_LOCAL_REPLICAS"
IPUS_PER_REPLICA = "POPDIST_NUM_IPUS_PER_REPLICA"


@final
@dataclass(frozen=True, slots=True)
class InstanceLayout:
    """All instances of a run, and which of them this process is.

    Args:
        num_instances: Pipelines, each of `num_ipus_per_replica` processes.
        num_local_replicas: Replicas of each.
        num_ipus_per_replica: Stages of a model, each of which is a process.
        instance_index: The instance of this process, from 0.
        stage: This process among those of its instance.
    """

    num_instances: int = 1
    num_local_replicas: int = 1
    num_ipus_per_replica: int = 1
    instance_index: int = 0
    stage: int = 0

    @property
    def num_processes(self) -> int:
        """Processes of all instances."""
        return self.num_instances * self.num_ipus_per_replica

    @property
    def rank(self) -> int:
        """This process among all."""
        return self.instance_index * self.num_ipus_per_replica + self.stage

    @property
    def num_total_replicas(self) -> int:
        """Replicas of all instances."""
        return self.num_instances * self.num_local_replicas

    @property
    def replica_index_offset(self) -> int:
        """The number of this instance's first replica among all."""
        return self.instance_index * self.num_local_replicas

    def to_environment(self) -> dict[str, str]:
        """Return the variables that are the same for all instances."""
        return {
            TOTAL_REPLICAS: str(self.num_total_replicas),
            LOCAL_REPLICAS: str(self.num_local_replicas),
            IPUS_PER_REPLICA: str(self.num_ipus_per_replica),
        }

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """Return what the launcher of this process said, or None if there was none.

        Launchers other than poprun say nothing about replicas: there is one in each instance then.

        Raises:
            DistributedError: The variables contradict each other, or some are missing.
        """
        launch = launched(environment)
        if launch is None:
            if TOTAL_REPLICAS in environment or LOCAL_REPLICAS in environment:
                raise DistributedError(
                    f"{TOTAL_REPLICAS} or {LOCAL_REPLICAS} is set, but nothing says which instance "
                    "this process is; start it with poprun or torchrun, or unset the variables "
                    "that begin with POPDIST_"
                )
            return None
        stages = _count(environment, IPUS_PER_REPLICA, 1)
        if launch.size % stages:
            raise DistributedError(
                f"{launch.size} processes cannot run replicas of {stages} processes each "
                f"({IPUS_PER_REPLICA}); start a multiple of {stages}"
            )
        layout = cls(
            num_instances=launch.size // stages,
            num_local_replicas=_count(environment, LOCAL_REPLICAS, 1),
            num_ipus_per_replica=stages,
            instance_index=launch.rank // stages,
            stage=launch.rank % stages,
        )
        total = _count(environment, TOTAL_REPLICAS, layout.num_total_replicas)
        if total != layout.num_total_replicas:
            raise DistributedError(
                f"{layout.num_instances} instances with {layout.num_local_replicas} replicas each "
                f"({LOCAL_REPLICAS}) do not have {total} replicas ({TOTAL_REPLICAS}) together; "
                "start all instances with one poprun, which sets these variables"
            )
        return layout


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise DistributedError(
            f"the environment variable {name} must be a number from 1 on, got {text!r}"
        )
    return int(text)

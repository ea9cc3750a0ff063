"""`popdist.poptorch.Options`: `poptorch.Options` for the instance that this process is."""

from __future__ import annotations

from typing import NoReturn, Self

import poptorch
from popdist import _own_poptorch  # noqa: F401 - refuses to work on a foreign poptorch
from popdist._instances import checkNumIpusPerReplica, current_layout
from poptorch import _option_groups
from torchkiln.commands._poprun_layout import InstanceLayout


class _DistributedOptions(_option_groups._DistributedOptions):  # of the same name in `repr`
    """Which of several instances this one is, as the launcher said it; nobody else may say it."""

    def __init__(self, layout: InstanceLayout) -> None:
        super().__init__()
        super().configureProcessId(layout.instance_index, layout.num_instances)
        self._layout = layout

    @property
    def _rank(self) -> int:
        return self._layout.rank

    @property
    def _num_ranks(self) -> int:
        return self._layout.num_processes

    def _read_environment(self) -> None:
        """Leave it: the two numbers are given."""

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Refuse: the launcher has said it."""
        _refuse("Distributed.configureProcessId")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Refuse: the launcher has said it."""
        _refuse("Distributed.setEnvVarNames")

    def disable(self) -> Self:
        """Refuse: the launcher has said it."""
        _refuse("Distributed.disable")


class Options(poptorch.Options):
    """Options whose processes and replicas are those that `poprun` started.

    Args:
        ipus_per_replica: Stages that a model is divided into, each of which needs a process;
            compared with what `poprun` was told.
    """

    def __init__(self, ipus_per_replica: int = 1) -> None:
        super().__init__()
        checkNumIpusPerReplica(ipus_per_replica)
        layout = current_layout()
        self._distributed = _DistributedOptions(layout)
        self.set(replication_factor=layout.num_local_replicas)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Refuse: `poprun --num-replicas` says it."""
        _refuse("replicationFactor")

    def useIpuId(self, ipu_id: int) -> Self:
        """Refuse: the launcher chooses devices."""
        _refuse("useIpuId")


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"popdist.poptorch.Options do not have {name}: poprun decides on processes, replicas and "
        "devices (--num-instances, --num-replicas); use poptorch.Options to decide yourself"
    )


__all__ = ["Options"]

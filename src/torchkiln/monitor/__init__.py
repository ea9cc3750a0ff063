"""What runs on this machine, and what it runs on. No torch here.

`read_programs` looks once; `Watch` looks again and again.
"""

from torchkiln.monitor._devices import Devices, find_devices
from torchkiln.monitor._status import (
    MachineStatus,
    OtherProcess,
    ProcessStatus,
    ProgramStatus,
    ResourceStatus,
    TrainingStatus,
)
from torchkiln.monitor._watch import Watch, read_programs

__all__ = [
    "Devices",
    "MachineStatus",
    "OtherProcess",
    "ProcessStatus",
    "ProgramStatus",
    "ResourceStatus",
    "TrainingStatus",
    "Watch",
    "find_devices",
    "read_programs",
]

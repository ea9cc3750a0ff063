"""Values of a monitor, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from torchkiln.monitor import (
    MachineStatus,
    OtherProcess,
    ProcessStatus,
    ProgramStatus,
    ResourceStatus,
    TrainingStatus,
)


def sample_program(**values: Any) -> ProgramStatus:
    start: dict[str, Any] = {
        "name": "training step",
        "kind": "training",
        "backend": "inductor",
        "device": "cpu",
        "source": "cache hit",
        "state": "running",
        "phase": "",
        "rank": 0,
        "num_ranks": 1,
        "calls": 500,
        "steps": 2000,
        "steps_per_s": 81.25,
        "executing_share": 0.934,
    }
    return ProgramStatus(**{**start, **values})


def sample_process(**values: Any) -> ProcessStatus:
    start: dict[str, Any] = {
        "pid": 205698,
        "command": "bench.py --config configs/qm9_quick.yml",
        "user": "trainee01",
        "seconds": 3725.0,
        "state": "running",
        "phase": "",
        "waiting_share": 0.021,
        "programs": (sample_program(),),
        "training": TrainingStatus(
            epoch=2, num_epochs=5, loss=0.01236, samples=96000, samples_per_s=7791.4
        ),
        "resources": ResourceStatus(
            memory_bytes=1_288_490_188,
            peak_bytes=1_395_864_371,
            num_threads=14,
            cpu_cores=1.97,
            num_children=2,
            is_stopped=False,
        ),
    }
    return ProcessStatus(**{**start, **values})


def sample_machine(*processes: ProcessStatus, **values: Any) -> MachineStatus:
    start: dict[str, Any] = {
        "processes": processes,
        "others": (OtherProcess(pid=77, user="somebody", seconds=90.0),),
        "num_other_format": 0,
        "seconds": 1.0,
    }
    return MachineStatus(**{**start, **values})

"""What a monitor says about processes and programs: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["compiling", "running", "waiting for data", "idle", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatus:
    """One program of a process.

    Args:
        name: What it was called when it was made.
        kind: "training" or "inference".
        backend: That runs it.
        device: That it runs on, as torch calls it; empty: not known yet.
        source: Where its executable is from: "compiled", "cache hit", "captured", "eager" or
            "file"; empty: it is not there yet.
        state: What it does.
        phase: Of the compilation; empty: it is not compiled just now.
        rank: Of the process among those that share the data, from 0.
        num_ranks: How many these are.
        calls: That returned since the program was made.
        steps: Of these calls: weight updates, or batches of an inference program.
        steps_per_s: Over the last steps; None: none ended lately.
        executing_share: Part of the time that was spent in calls, over the time looked at; None: it
            was looked at only once.
    """

    name: str
    kind: str
    backend: str
    device: str
    source: str
    state: State
    phase: str
    rank: int
    num_ranks: int
    calls: int
    steps: int
    steps_per_s: float | None
    executing_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStatus:
    """What the training loop of a process tells.

    Args:
        epoch: From 1.
        num_epochs: Of the whole run.
        loss: Of the last step.
        samples: Real ones that this process trained on.
        samples_per_s: Over the last steps; None: none ended lately.
    """

    epoch: int
    num_epochs: int
    loss: float
    samples: int
    samples_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """What a process takes of the machine.

    Args:
        memory_bytes: That it holds now.
        peak_bytes: That it held at most; None: the system does not tell.
        num_threads: Of the process.
        cpu_cores: How many cores were busy for it, its children left out; None: it was looked at
            only once.
        num_children: Processes that it started, and theirs.
        is_stopped: Whether somebody stopped it, as Ctrl-Z does.
    """

    memory_bytes: int
    peak_bytes: int | None
    num_threads: int
    cpu_cores: float | None
    num_children: int
    is_stopped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """A process of this user that runs programs.

    Args:
        pid: Its number.
        command: What was called.
        user: Whose it is.
        seconds: Since it was started.
        state: What it does.
        phase: Of the compilation; empty: nothing is compiled just now.
        waiting_share: Part of the time that was spent on waiting for data, over the time looked at;
            None: it was looked at only once.
        programs: The last twelve that were used.
        training: What its training loop tells; None: there is none.
        resources: None if it runs in another container, of which this one sees nothing.
    """

    pid: int
    command: str
    user: str
    seconds: float
    state: State
    phase: str
    waiting_share: float | None
    programs: tuple[ProgramStatus, ...]
    training: TrainingStatus | None
    resources: ResourceStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcess:
    """A process of another user who set `TORCHKILN_BEACON=shared`.

    Args:
        pid: Its number.
        user: Whose it is.
        seconds: Since it was started.
    """

    pid: int
    user: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """What runs on this machine.

    Args:
        processes: Of this user.
        others: Of other users, as far as they want to be seen.
        num_other_format: Processes of this user that run another version of Torchkiln.
        seconds: The time over which shares were taken; None: it was looked at only once.
    """

    processes: tuple[ProcessStatus, ...]
    others: tuple[OtherProcess, ...]
    num_other_format: int
    seconds: float | None

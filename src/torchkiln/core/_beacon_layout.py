"""The bytes of a beacon: what a running process tells the monitor, in a file of one page.

    header   who it is; written once
    process  waiting for data, and what the training loop tells; one sequence number
    slots    one for each program; a sequence number each

A sequence number is odd while its record is written: whoever finds the same even number before and
after copying a record has copied it whole. The two `since` fields are the exception: they say that
something began, are one aligned word each, and are written alone.

Times are those of `time.monotonic_ns`, which all processes of a machine share.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

MAGIC = b"TKBEACON"
# Another number for every change of what follows: a monitor ignores what it does not know.
FORMAT = 1
SIZE = 4096

# Magic, format, size, pid, namespace of the pid, start of the process in ticks, wall clock when the
# beacon was made, command.
HEADER = struct.Struct("=8sIIqQqq256s")

PROCESS_AT = 512
PROCESS_BYTES = 128
# Sequence; waiting: since, nanoseconds; training: samples, end and length of the last step, its
# samples, epoch, epochs, loss.
PROCESS = struct.Struct("=qqqqqqqqqd")
PROCESS_SINCE = 1  # in words of eight bytes

SLOTS_AT = 1024
SLOT_BYTES = 256
NUM_SLOTS = 12
# Sequence, since, state, calls, steps, nanoseconds of executing, end of the last call, time from
# the end of the call before.
SLOT = struct.Struct("=qqqqqqqq")
SLOT_SINCE = 1
# Steps a call, rank, ranks, number of the program; name, kind, backend, where the
# executable is from, phase, device.
FACTS_AT = SLOT.size
FACTS = struct.Struct("=iiii48s16s16s24s40s16s")

FREE, READY, COMPILING, NEW = range(4)


@dataclass(frozen=True, slots=True)
class Header:
    """Who a beacon belongs to.

    Args:
        pid: Of the process, in its own namespace.
        namespace: Number of that namespace; 0 if the system has none.
        start_ticks: When the process was started: tells it from a later one with the same pid.
        made_ns: Wall clock when the beacon was made, in nanoseconds.
        command: What was called.
    """

    pid: int
    namespace: int
    start_ticks: int
    made_ns: int
    command: str

    def encode(self) -> bytes:
        return HEADER.pack(
            MAGIC,
            FORMAT,
            SIZE,
            self.pid,
            self.namespace,
            self.start_ticks,
            self.made_ns,
            clip(self.command, 256),
        )


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What a process does beside its programs.

    Args:
        sequence: Even: whole.
        waiting_since_ns: When it began to wait for data; 0: it does not.
        waiting_ns: How long it has waited, the present wait left out.
        samples: Real ones that the training loop has trained on.
        trained_ns: When its last step ended; 0: there is no training loop.
        train_interval_ns: From the end of the step before to that; 0: it was the first.
        train_samples: Of the last step.
        epoch: From 1.
        num_epochs: Of the whole run.
        loss: Of the last step.
    """

    sequence: int
    waiting_since_ns: int
    waiting_ns: int
    samples: int
    trained_ns: int
    train_interval_ns: int
    train_samples: int
    epoch: int
    num_epochs: int
    loss: float


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """One program.

    Args:
        sequence: Even: whole.
        since_ns: When the present call, or the compilation, began; 0: neither.
        state: FREE, NEW, COMPILING or READY.
        calls: That returned.
        steps: Of these calls: weight updates, or batches of an inference program.
        executing_ns: How long calls took, the present one left out.
        ended_ns: When the last call ended; 0: there was none.
        interval_ns: From the end of the call before to that; 0: it was the first.
        steps_per_call: How many steps a call has.
        rank: Of the process among those that share the data.
        num_ranks: How many these are.
        number: Of the program in its process: no other ever has it.
        name: Of the program.
        kind: "training" or "inference".
        backend: That runs it.
        source: Where the executable is from: "compiled", "cache hit", ...; empty: not there yet.
        phase: Of the compilation.
        device: That it runs on, as torch calls it; empty: not known yet.
    """

    sequence: int
    since_ns: int
    state: int
    calls: int
    steps: int
    executing_ns: int
    ended_ns: int
    interval_ns: int
    steps_per_call: int
    rank: int
    num_ranks: int
    number: int
    name: str
    kind: str
    backend: str
    source: str
    phase: str
    device: str


class OtherFormat(Exception):  # noqa: N818 - says what was found, and is caught by every reader
    """A beacon of another version of Torchkiln."""


def clip(text: str, num_bytes: int) -> bytes:
    """Return a text in at most so many bytes, without half a character at the end."""
    cut = text.encode(errors="replace")[:num_bytes]
    return cut.decode(errors="ignore").encode()


def decode_header(content: bytes) -> Header | None:
    """Return who a beacon belongs to; None if it is damaged, or not finished yet.

    Raises:
        OtherFormat: It was written by another version.
    """
    if len(content) < HEADER.size or content[: len(MAGIC)] != MAGIC:
        return None
    _, version, size, pid, namespace, ticks, made_ns, command = HEADER.unpack_from(content)
    if version != FORMAT:
        raise OtherFormat(version)
    if size != SIZE or len(content) != SIZE or pid <= 0 or ticks < 0:
        return None
    return Header(pid, namespace, ticks, made_ns, _text(command))


def decode_process(record: bytes) -> ProcessRecord:
    """Return what a process does beside its programs."""
    return ProcessRecord(*PROCESS.unpack_from(record))


def decode_slot(record: bytes) -> SlotRecord | None:
    """Return what a slot says; None if it says nothing that this version knows."""
    values: list[Any] = [*SLOT.unpack_from(record), *FACTS.unpack_from(record, FACTS_AT)]
    values = [_text(part) if isinstance(part, bytes) else part for part in values]
    slot = SlotRecord(*values)
    return slot if slot.state in (FREE, READY, COMPILING, NEW) else None


def slot_at(number: int) -> int:
    """Return where a slot begins."""
    return SLOTS_AT + number * SLOT_BYTES


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")

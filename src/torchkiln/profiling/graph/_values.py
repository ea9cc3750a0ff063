"""`GraphProfile`: where the time and the memory of one step go, as plain values.

Everything that is shown (page, terminal, trace) is made of these values, and they alone are written
to disk. Times are microseconds of one step: one weight update in training, one micro-batch in
inference. Rows add up to the time inside the executable, and with `outside_us` to the step.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of `profile.json`. A reader refuses other numbers.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program.

    Args:
        file: As a person would name it: relative to the working directory where that is shorter.
        line: Its number.
        function: The function that it is in.
        code: Its text.
    """

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Call:
    """One call in the host part of the executable, in the order of execution.

    Args:
        index: Its place among all calls of the profile.
        entry: The entry point that it is in: infer, step, accumulate or update.
        kernel: What is called: a generated kernel, or an operator of a library.
        kind: `generated` (code of the compiler), `library` (an operator that is called as it is),
            or `copy` (memory that is only moved).
        phase: forward, backward or update.
        us: Time in one step, all runs together; None if nothing was measured.
        runs: How often it runs in one step (accumulation runs micro-batch by micro-batch).
        flops: Floating-point operations of one run; 0 where there are none or nobody knows.
        bytes_read: Memory that one run must read at least.
        bytes_written: Memory that one run must write.
        inputs: Shapes and dtypes that it reads, such as "f32[64, 128]".
        outputs: Shapes and dtypes that it writes.
        operations: The recorded operations that it computes, in order, such as
            "layer1: aten.relu (model.py:12)".
    """

    index: int
    entry: str
    kernel: str
    kind: str
    phase: str
    us: float | None
    runs: float
    flops: int
    bytes_read: int
    bytes_written: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What of a call belongs to one line, module and operator.

    Args:
        call: Index of the call.
        phase: forward, backward or update.
        module: Name of the module as `named_modules` has it; "" is the outermost.
        module_kind: Its class.
        line: Index into `GraphProfile.lines` of the user's line, in backward that of the forward
            operation; None where there is no line.
        operator: Such as `aten.addmm`.
        parameter: Name of the parameter that an update row changes; else "".
        us: Time in one step; None if nothing was measured.
        flops: Floating-point operations in one step.
        bytes_moved: Bytes read and written in one step.
        is_estimate: Whether the call serves several rows, so that its time was divided
            by the work that each of them has in it.
    """

    call: int
    phase: str
    module: str
    module_kind: str
    line: int | None
    operator: str
    parameter: str
    us: float | None
    flops: float
    bytes_moved: float
    is_estimate: bool


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of memory that the step allocates.

    Args:
        size_bytes: Its size.
        born: Index of the call before which it is allocated.
        last: Index of the last call during which it is there.
        kind: `activation` (made in forward, read in backward), `gradient`, or `temporary`.
        module: That makes it.
        line: Index of the user's line, or None.
        operator: That makes it.
        shape: Such as "f32[64, 128]"; "" for memory that a library needs for itself.
        at_peak: Whether it is alive when the step needs most.
    """

    size_bytes: int
    born: int
    last: int
    kind: str
    module: str
    line: int | None
    operator: str
    shape: str
    at_peak: bool


@dataclass(frozen=True, slots=True)
class Liveness:
    """Memory over the calls of one run of an entry; needs no run.

    Args:
        always: What is there before, during and after a step, by name (parameters and buffers,
            optimiser state, batch, ...), in bytes.
        blocks: What the step allocates.
        peak_call: Index of the call at which most is alive.
        peak_bytes: Of the blocks alive then, without `always`.
        machine_bytes: Memory of the machine that was free, for comparison.
        fits: Whether all of it fits.
        advice: What to do if it does not, one sentence each, the best first.
    """

    always: dict[str, int]
    blocks: tuple[Block, ...]
    peak_call: int
    peak_bytes: int
    machine_bytes: int
    fits: bool
    advice: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """What the program needs at the worst moment."""
        return sum(self.always.values()) + self.peak_bytes


@dataclass(frozen=True, slots=True)
class Insight:
    """Something that holds the step up, and what to change.

    Args:
        kind: `data`, `python`, `memory-bound`, `compute-bound`, `other-processes`, `memory`, ...
        title: A few words.
        text: What was seen, in figures, in whole sentences.
        remedy: What to change, as code where that is possible.
        gain_us: Time that the remedy is expected to save in each step; None if it saves none.
        gain_bytes: Memory that it is expected to save; None if it saves none.
    """

    kind: str
    title: str
    text: str
    remedy: str
    gain_us: float | None = None
    gain_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """The wall time of one step, divided; the parts add up to `step_us` and `loop_us`.

    Args:
        step_us: One step inside the call of the program.
        executable_us: Inside native code.
        outside_us: Python and marshalling around it, inside the call.
        waiting_us: Between calls, waiting for data; None if the caller's loop was not seen.
        other_us: Between calls, everything else; None if the caller's loop was not seen.
        steps_measured: How many steps were measured.
        steps_used: How many of them, the quiet ones, the averages are made of.
        slowest_us: The slowest measured step.
    """

    step_us: float
    executable_us: float
    outside_us: float
    waiting_us: float | None
    other_us: float | None
    steps_measured: int
    steps_used: int
    slowest_us: float

    @property
    def loop_us(self) -> float:
        """One step with what lies between two of them."""
        return self.step_us + (self.waiting_us or 0.0) + (self.other_us or 0.0)


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this machine reached when it was measured, with the threads of the program."""

    gflops_per_s: float
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class GraphProfile:
    """The profile of one program.

    Args:
        name: Of the program: training, inference, or what it was given.
        training: Whether it trains.
        model: Class of the module.
        num_parameters: Numbers that it learns.
        backend: inductor or capture.
        options: The options of the program that differ from the defaults, as text.
        inputs: Shapes and dtypes of the arguments, such as "x: f32[64, 128]".
        steps_per_call: Steps in one call of the program (device iterations).
        micro_batches_per_step: Micro-batches in one step (accumulation and replicas).
        versions: Of torchkiln, torch, Python, by name.
        machine: Facts about it by name: processor, cores, threads, memory.
        compile_seconds: Phases of the build by name; empty if it came from the cache.
        from_cache: Whether the executable came from the cache.
        created: When the profile was made, ISO 8601.
        times: None if nothing was run.
        peaks: None if nothing was run.
        lines: Lines of the user's program that others refer to by index.
        calls: The calls of the executable, in order.
        rows: What belongs to which line; adds up to `times.executable_us`.
        liveness: None for a backend that has no plan.
        insights: What to change, the largest gain first.
    """

    name: str
    training: bool
    model: str
    num_parameters: int
    backend: str
    options: dict[str, str]
    inputs: tuple[str, ...]
    steps_per_call: int
    micro_batches_per_step: int
    versions: dict[str, str]
    machine: dict[str, str]
    compile_seconds: dict[str, float]
    from_cache: bool
    created: str
    times: Times | None
    peaks: Peaks | None
    lines: tuple[SourceLine, ...]
    calls: tuple[Call, ...]
    rows: tuple[Row, ...]
    liveness: Liveness | None
    insights: tuple[Insight, ...] = ()

    def line_of(self, row: Row | Block) -> SourceLine | None:
        """Return the user's line of a row or a block."""
        return None if row.line is None else self.lines[row.line]

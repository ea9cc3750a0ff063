"""`Plan`: the host part of a generated program as values: its calls and the memory between them.

It is read off Inductor's own plan, before any C++ is written, and travels inside the native code
that is made of it (`_marks.py`). Recorded nodes are named by their numbers (`passes/_numbers.py`).
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import astuple, dataclass
from typing import Any

from torchkiln.runtime.compile._scratch import scratch_bytes
from torchkiln.runtime.passes._numbers import numbers_of
from torchkiln.torch_internals._inductor_plan import (
    bytes_of_own,
    call_mark,
    form_of_buffer,
    origins_of,
    plan_lines,
    work_of_part,
)

_NAME = re.compile(r"\bbuf\d+")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """Something that a call reads or writes."""

    form: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A loop of a generated kernel, or all of an operator.

    Args:
        work: How many elements it goes through.
        nodes: Numbers of the recorded nodes that it computes.
    """

    work: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a generated kernel, or of an operator as it is."""

    kernel: str
    is_generated: bool
    parts: tuple[PlannedPart, ...]
    reads: tuple[PlannedTensor, ...]
    writes: tuple[PlannedTensor, ...]
    scratch_bytes: int

    @property
    def nodes(self) -> list[int]:
        """Numbers of all recorded nodes that it computes."""
        return [number for part in self.parts for number in part.nodes]


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """A piece of memory.

    Args:
        size_bytes: Its size.
        form: Shape and dtype of the tensor in it.
        born: Index of the first call at which it is there.
        last_use: Index of the last call that reads or writes it.
        last: Index of the last call at which it is there.
        nodes: Numbers of the recorded nodes that it holds the result of.
    """

    size_bytes: int
    form: str
    born: int
    last_use: int
    last: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls of one entry point, in order, and the memory that it allocates.

    Args:
        calls: In order of execution.
        blocks: In the order in which they end.
        digest: Of the recorded graph whose nodes are named by number (`passes/_numbers.py`).
    """

    calls: tuple[PlannedCall, ...]
    blocks: tuple[PlannedBlock, ...]
    digest: str

    def live_bytes(self) -> list[int]:
        """Return the bytes that are allocated at each call, without the calls' own scratch."""
        changes = [0] * (len(self.calls) + 1)
        for block in self.blocks:
            changes[block.born] += block.size_bytes
            changes[block.last + 1] -= block.size_bytes
        live, total = [], 0
        for change in changes[:-1]:
            total += change
            live.append(total)
        return live

    def peak_call(self) -> int | None:
        """Return the index of the (first) call at which most memory is there; None: no calls."""
        needs = [
            live + call.scratch_bytes
            for live, call in zip(self.live_bytes(), self.calls, strict=True)
        ]
        return max(range(len(needs)), key=needs.__getitem__) if needs else None

    def to_json(self) -> str:
        """Return the plan as text; `from_json` reads it."""
        return json.dumps(
            {
                "calls": [astuple(call) for call in self.calls],
                "blocks": [astuple(block) for block in self.blocks],
                "digest": self.digest,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        values = json.loads(text)
        return cls(
            tuple(_call(*entry) for entry in values["calls"]),
            tuple(
                PlannedBlock(size, form, born, last_use, last, tuple(nodes))
                for size, form, born, last_use, last, nodes in values["blocks"]
            ),
            values["digest"],
        )


def _call(
    kernel: str, is_generated: bool, parts: Any, reads: Any, writes: Any, scratch: int
) -> PlannedCall:
    return PlannedCall(
        kernel,
        is_generated,
        tuple(PlannedPart(work, tuple(nodes)) for work, nodes in parts),
        tuple(PlannedTensor(*entry) for entry in reads),
        tuple(PlannedTensor(*entry) for entry in writes),
        scratch,
    )


def read_plan(lines: list[Any], digest: str) -> Plan:
    """Return what the lines of Inductor's plan say; to be called while Inductor generates code."""
    reader = _Reader()
    for line in lines:
        reader.follow(line)
    return reader.plan(digest)


@dataclass(slots=True)
class _Open:
    """A block that is not freed yet."""

    size_bytes: int
    form: str
    born: int
    last_use: int
    nodes: tuple[int, ...]


class _Reader:
    """Walks through the host part of the generated code, line by line."""

    def __init__(self) -> None:
        self._calls: list[PlannedCall] = []
        self._blocks: list[PlannedBlock] = []
        self._live: dict[str, _Open] = {}
        self._seen: set[str] = set()

    def plan(self, digest: str) -> Plan:
        for name in list(self._live):  # outputs, which live on
            self._free(name)
        return Plan(tuple(self._calls), tuple(self._blocks), digest)

    def follow(self, line: Any) -> None:
        codegen, mark = plan_lines(), call_mark()
        match line:
            case mark():
                self._called(line)
            case codegen.AllocateLine():
                self._allocate(line.node.get_name())
            case codegen.FreeLine():
                self._free(line.node.get_name())
            case codegen.FreeIfNotReusedLine():
                if not line.is_reused:
                    self._free(line.node.get_name())
            case codegen.ReuseLine():
                self._reuse(line.node.get_name(), line.reused_as)
            case codegen.MultiOutputLine():
                self._allocate(line.result_name)
            case codegen.ExternKernelAllocLine() | codegen.ExternKernelOutLine():
                self._allocate_results(line.node)
            case codegen.ScatterFallbackLine() | codegen.IndexPutFallbackLine():
                self._allocate_results(line.node)
            case str():
                # Calls of operators by name are plain text; what they return appears in it.
                for name in [] if line.lstrip().startswith("//") else _NAME.findall(line):
                    self._allocate(name)

    # -- calls ------------------------------------------------------------------------------

    def _called(self, mark: Any) -> None:
        call, names = _of_kernel(mark) if mark.operator is None else _of_operator(mark)
        index = len(self._calls)
        for name in names:
            if name in self._live:
                self._live[name].last_use = index
        self._calls.append(call)

    # -- memory -----------------------------------------------------------------------------

    def _allocate_results(self, node: Any) -> None:
        # All results of a call are there when it returns, whenever the code takes them out.
        self._allocate(node.get_name())
        for result in getattr(node, "outputs", None) or ():
            if result is not None:
                self._allocate(result.get_name())

    def _allocate(self, name: str) -> None:
        """Count a buffer at its first appearance, if it has memory of its own."""
        own = None if name in self._seen else bytes_of_own(name)
        if own is None:
            return
        size_bytes, buffer = own
        self._begin(name, size_bytes, buffer)

    def _reuse(self, name: str, buffer: Any) -> None:
        """Let another tensor take over the memory of one that is not needed any more."""
        block = self._live.get(name)
        self._seen.add(buffer.get_name())
        if block is not None:
            self._free(name)
            self._begin(buffer.get_name(), block.size_bytes, buffer)

    def _begin(self, name: str, size_bytes: int, buffer: Any) -> None:
        self._seen.add(name)
        now = len(self._calls)  # memory is there for the call that comes next
        form = _tensor(name)
        self._live[name] = _Open(
            size_bytes, form.form if form else "", now, now, _numbers(origins_of(buffer))
        )

    def _free(self, name: str) -> None:
        """End a block; names that are not blocks (inputs, views) are passed over."""
        block = self._live.pop(name, None)
        last = len(self._calls) - 1
        if block is not None and block.born <= last:
            self._blocks.append(
                PlannedBlock(
                    block.size_bytes,
                    block.form,
                    block.born,
                    min(block.last_use, last),
                    last,
                    block.nodes,
                )
            )


def _of_kernel(mark: Any) -> tuple[PlannedCall, list[str]]:
    """Return the call of a generated kernel, and the names of its arguments."""
    parts = [
        PlannedPart(work_of_part(part), _numbers(origins_of(part.node))) for part in mark.parts
    ]
    reads: list[PlannedTensor] = []
    writes: list[PlannedTensor] = []
    for name, kind in zip(mark.arguments, mark.types, strict=True):
        tensor = _tensor(name)
        if tensor is not None:
            (reads if kind.lstrip().startswith("const") else writes).append(tensor)
    call = PlannedCall(mark.kernel, True, tuple(parts), tuple(reads), tuple(writes), 0)
    return call, list(mark.arguments)


def _of_operator(mark: Any) -> tuple[PlannedCall, list[str]]:
    """Return the call of an operator, and the names of what it reads and writes."""
    node = mark.operator
    results = [node, *(result for result in getattr(node, "outputs", None) or () if result)]
    written = [result.get_name() for result in results]
    read = sorted({dependency.name for dependency in node.get_read_writes().reads})
    writes = [tensor for name in written if (tensor := _tensor(name)) is not None]
    part = PlannedPart(1, _numbers(origins_of(node)))
    call = PlannedCall(
        mark.kernel,
        False,
        (part,),
        tuple(tensor for name in read if (tensor := _tensor(name)) is not None),
        tuple(writes),
        scratch_bytes(node),
    )
    return call, [*written, *read]


def _numbers(origins: list[Any]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(number for node in origins for number in numbers_of(node)))


def _tensor(name: str) -> PlannedTensor | None:
    found = form_of_buffer(name)
    if found is None:
        return None
    sizes, dtype = found
    form = f"{short_dtype(dtype)}[{', '.join(map(str, sizes))}]"
    return PlannedTensor(form, math.prod(sizes) * int(dtype.itemsize))


def short_dtype(dtype: Any) -> str:
    """Return a dtype in a few letters: f32, bf16, i64, b8."""
    name = str(dtype).removeprefix("torch.")
    for word, letters in _SHORT.items():
        if name.startswith(word):
            return letters + (name.removeprefix(word) or "8")
    return name


_SHORT = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c", "bool": "b"}

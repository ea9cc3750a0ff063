"""The memory plan of native code: Inductor's own, read before any C++ is compiled.

Inductor decides which intermediates exist at all (fused ones do not), in which layout, when they
are freed and whose memory is used again. Its plan is the program's memory, so nothing is guessed
here but what the libraries behind it (oneDNN) allocate for themselves.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from torchkiln.core import CompileError, TorchkilnError
from torchkiln.runtime.capture._capture import Entry
from torchkiln.runtime.compile._inductor import compile_entry, explain_failure
from torchkiln.runtime.memory._scratch import scratch_bytes
from torchkiln.runtime.memory._timeline import Timeline
from torchkiln.runtime.passes._origins import Phase, joint_origin, origin
from torchkiln.torch_internals._inductor_plan import (
    bytes_of_own,
    line_context,
    plan_lines,
    plans_given_to,
)

_NAME = re.compile(r"\bbuf\d+")


class _Planned(BaseException):
    """Leaves Inductor as soon as the plan is there. Not an error: nobody must catch it."""


def plan_native(entry: Entry, module: nn.Module, recomputes: bool) -> Timeline:
    """Return the memory of one entry as native code would use it.

    Raises:
        CompileError: if Inductor cannot generate code for the entry.
    """
    follower = _Follower()

    def read(lines: list[Any]) -> None:
        for line in lines:
            follower.follow(line)
        raise _Planned

    try:
        with plans_given_to(read):
            compile_entry(entry, module, recomputes)
    except _Planned:
        return follower.timeline
    except TorchkilnError:
        raise
    except Exception as error:
        raise CompileError(explain_failure(error)) from error
    raise CompileError(
        "Inductor finished without a memory plan; backend='capture' tells the memory of the "
        "static graph"
    )


class _Follower:
    """Walks through the host part of the generated code, line by line."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._seen: set[str] = set()
        self._module, self._phase = "", Phase.FORWARD

    def follow(self, line: Any) -> None:
        codegen, context = plan_lines(), line_context()
        match line:
            case context():
                self._module, self._phase = origin(line.context)
            case codegen.AllocateLine():
                self._allocate(line.node.get_name())
            case codegen.FreeLine():
                self.timeline.free(line.node.get_name())
            case codegen.FreeIfNotReusedLine():
                if not line.is_reused:
                    self.timeline.free(line.node.get_name())
            case codegen.ReuseLine():
                reused: Any = line.reused_as
                made = joint_origin(reused.origins)
                self._seen.add(line.reused_as.get_name())
                self.timeline.reuse(line.node.get_name(), line.reused_as.get_name(), *made)
            case codegen.KernelCallLine():
                self._use([str(name) for name in line.call_args])
            case codegen.MultiOutputLine():
                self._allocate(line.result_name)
                self._use([line.result_name])
            case codegen.ExternKernelAllocLine() | codegen.ExternKernelOutLine():
                self._call(line.node)
            case codegen.ScatterFallbackLine() | codegen.IndexPutFallbackLine():
                self._call(line.node)
            case str():
                # Calls of operators by name are plain text; what they return appears in it.
                names = [] if line.lstrip().startswith("//") else _NAME.findall(line)
                for name in names:
                    self._allocate(name)
                self._use(names)

    def _call(self, node: Any) -> None:
        if self._phase is Phase.BACKWARD:
            # Kernels of forward may prepare things for backward; library calls are one or other.
            self.timeline.turn()
        self._allocate(node.get_name())
        # All results of a call are there when it returns, whenever the code takes them out.
        for result in getattr(node, "outputs", None) or ():
            if result is not None:
                self._allocate(result.get_name())
        reads = [dependency.name for dependency in node.get_read_writes().reads]
        self._use([node.get_name(), *reads], scratch_bytes(node))

    def _use(self, names: list[str], extra_bytes: int = 0) -> None:
        self.timeline.use(names, self._module, self._phase, extra_bytes)

    def _allocate(self, name: str) -> None:
        """Count a buffer at its first appearance, if it has memory of its own."""
        own = None if name in self._seen else bytes_of_own(name)
        if own is None:
            return
        self._seen.add(name)
        size_bytes, origins = own
        self.timeline.allocate(name, size_bytes, *joint_origin(origins))

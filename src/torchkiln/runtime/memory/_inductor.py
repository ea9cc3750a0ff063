"""The plan of native code: Inductor's own, read before any C++ is compiled.

Inductor decides which intermediates exist at all (fused ones do not), in which layout, when they
are freed and whose memory is used again. Its plan is the program's memory, so nothing is guessed
here but what the libraries behind it (oneDNN) allocate for themselves.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from torchkiln.core import CompileError, TorchkilnError
from torchkiln.runtime.capture._capture import Entry
from torchkiln.runtime.compile._inductor import compile_entry, explain_failure
from torchkiln.runtime.compile._plan import Plan, read_plan


class _Planned(BaseException):
    """Leaves Inductor as soon as the plan is there. Not an error: nobody must catch it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


def plan_native(entry: Entry, module: nn.Module, recomputes: bool) -> Plan:
    """Return the plan of one entry as native code would follow it; its graph is used up.

    Raises:
        CompileError: if Inductor cannot generate code for the entry.
    """

    def read(lines: list[Any], digest: str) -> NoReturn:
        raise _Planned(read_plan(lines, digest))

    try:
        compile_entry(entry, module, recomputes, read)
    except _Planned as planned:
        return planned.plan
    except TorchkilnError:
        raise
    except Exception as error:
        raise CompileError(explain_failure(error)) from error
    raise CompileError(
        "Inductor finished without a memory plan; backend='capture' tells the memory of the "
        "static graph"
    )

"""Reading Inductor's plan: the host part of generated code as lines, and the buffers they name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def plans_given_to(read: Callable[[list[Any]], None]) -> Iterator[None]:
    """Call `read` with the lines of every plan, before any C++ is written.

    torch: `run_wrapper_ir_passes` leaves the final lines in `wrapper.lines`, in order of execution.
    for: memory is predicted from the program's own plan, without compiling it.
    """
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    original = PythonWrapperCodegen.run_wrapper_ir_passes

    def plan(wrapper: Any, is_inference: bool) -> None:
        original(wrapper, is_inference)
        read(wrapper.lines)

    with mock.patch.object(PythonWrapperCodegen, "run_wrapper_ir_passes", plan):
        yield


def plan_lines() -> Any:
    """Return the module that holds the kinds of lines.

    torch: `AllocateLine`, `FreeLine`, `FreeIfNotReusedLine` (`node`, `is_reused`), `ReuseLine`
        (`node`, `reused_as`), `KernelCallLine` (`call_args`), `MultiOutputLine` (`result_name`),
        and four kinds of calls of operators (`node`); other calls are plain text.
    for: a prediction counts a buffer from its allocation to its end.
    """
    from torch._inductor.codegen import wrapper

    return wrapper


def line_context() -> Any:
    """Return the kind of line that says which recorded node the next ones come from.

    torch: `LineContext.context` is the node of the graph.
    for: a prediction names the module that needs the memory.
    """
    from torch._inductor.utils import LineContext

    return LineContext


def bytes_of_own(name: str) -> tuple[int, Any] | None:
    """Return the size of a buffer that has memory of its own, with the nodes that it comes from.

    None for inputs, for buffers that were fused away, and for views.

    torch: while code is generated, `V.graph` knows `removed_buffers`, `graph_inputs`, and by
        `try_get_buffer` the others; `get_allocation_storage_size` is what is allocated for one.
    for: a prediction counts what exists, once.
    """
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    buffer = V.graph.try_get_buffer(name)
    if name in V.graph.removed_buffers or name in V.graph.graph_inputs:
        return None
    if not isinstance(buffer, ir.Buffer) or not isinstance(
        buffer.layout, ir.FixedLayout | ir.FlexibleLayout
    ):
        return None
    if buffer.get_inputs_that_alias_output():
        return None
    size = V.graph.sizevars.optimization_hint(V.graph.get_allocation_storage_size(buffer))
    return size * buffer.get_dtype().itemsize, buffer.origins

"""Reading Inductor's plan: the host part of generated code as lines, and the buffers they name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


@functools.cache
def call_mark() -> Any:
    """Return the kind of line that stands behind every call of a plan.

    Its `kernel` is the name of what is called, its `operator` the node of an operator that is
    called as it is (None for generated kernels), its `parts` the scheduled nodes that a generated
    kernel computes, `arguments` and `types` what that is called with. The line becomes its
    `statement` in the generated code, nothing if that is empty.

    torch: lines of a plan are `WrapperLine`s that write themselves by `codegen(code)`; kinds that
        Inductor does not know pass through its memory planning.
    for: a clock is read behind each call, and a call knows the recorded nodes that it computes.
    """
    from torch._inductor.codegen.wrapper import WrapperLine

    class CallMark(WrapperLine):  # type: ignore[misc, unused-ignore]
        def __init__(
            self,
            kernel: str,
            operator: Any = None,
            parts: tuple[Any, ...] = (),
            arguments: tuple[str, ...] = (),
            types: tuple[str, ...] = (),
        ) -> None:
            self.kernel = kernel
            self.operator = operator
            self.parts = parts
            self.arguments = arguments
            self.types = types
            self.statement = ""

        def codegen(self, code: Any) -> None:
            if self.statement:
                code.writeline(self.statement)

    return CallMark


@contextlib.contextmanager
def plans_given_to(read: Callable[[list[Any]], str]) -> Iterator[None]:
    """Call `read` with the lines of every plan, before any C++ is written.

    A `call_mark` stands behind each call. What `read` returns is put before the generated host
    code, outside of all functions. Graphs inside a graph (branches, loops) are not read.

    torch: `run_wrapper_ir_passes` leaves the final lines in `wrapper.lines`, in order of execution;
        `KernelGroup.call_kernel` writes the call of a generated kernel for its `scheduled_nodes`,
        whose arguments `args.cpp_argdefs()` tells; `ExternKernelSchedulerNode.codegen` writes the
        call of an operator; `wrapper.header` is the text before all functions.
    for: memory is predicted from the program's own plan, without compiling it; time is measured
        call by call.
    """
    from torch._inductor import ir
    from torch._inductor.codegen.cpp import KernelGroup
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.graph import SubgraphLowering
    from torch._inductor.scheduler import ExternKernelSchedulerNode
    from torch._inductor.virtualized import V

    mark = call_mark()
    run_passes = PythonWrapperCodegen.run_wrapper_ir_passes
    call_kernel = KernelGroup.call_kernel
    call_operator = ExternKernelSchedulerNode.codegen

    def plan(wrapper: Any, is_inference: bool) -> None:
        run_passes(wrapper, is_inference)
        if not isinstance(V.graph, SubgraphLowering):
            wrapper.header.splice(read(wrapper.lines))

    def kernel_called(group: Any, wrapper: Any, kernel_name: str) -> None:
        call_kernel(group, wrapper, kernel_name)
        _, arguments, types = group.args.cpp_argdefs()
        wrapper.writeline(
            mark(
                kernel_name,
                parts=tuple(group.scheduled_nodes),
                arguments=tuple(map(str, arguments)),
                types=tuple(map(str, types)),
            )
        )

    def operator_called(scheduled: Any, wrapper: Any) -> None:
        call_operator(scheduled, wrapper)
        node: Any = scheduled.node
        if not isinstance(node, ir.MultiOutput):  # only takes a result out of a tuple
            name = getattr(node, "python_kernel_name", None) or type(node).__name__
            wrapper.writeline(mark(str(name), operator=node))

    with (
        mock.patch.object(PythonWrapperCodegen, "run_wrapper_ir_passes", plan),
        mock.patch.object(KernelGroup, "call_kernel", kernel_called),
        mock.patch.object(ExternKernelSchedulerNode, "codegen", operator_called),
    ):
        yield


def plan_lines() -> Any:
    """Return the module that holds the kinds of lines.

    torch: `AllocateLine`, `FreeLine`, `FreeIfNotReusedLine` (`node`, `is_reused`), `ReuseLine`
        (`node`, `reused_as`), `MultiOutputLine` (`result_name`), and four kinds of calls of
        operators (`node`); other calls are plain text.
    for: a prediction counts a buffer from its allocation to its end.
    """
    from torch._inductor.codegen import wrapper

    return wrapper


def bytes_of_own(name: str) -> tuple[int, Any] | None:
    """Return the size of a buffer that has memory of its own, with the buffer.

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
    return size * buffer.get_dtype().itemsize, buffer


def form_of_buffer(name: str) -> tuple[list[int], Any] | None:
    """Return shape and dtype of an input or a buffer of the graph that is lowered, if it has any.

    torch: `V.graph.try_get_buffer` knows inputs too; operators with several results have no shape.
    for: calls are shown with what they read and write.
    """
    from torch._inductor.virtualized import V

    buffer: Any = V.graph.try_get_buffer(name)
    try:
        sizes = [int(V.graph.sizevars.optimization_hint(size)) for size in buffer.get_size()]
        return sizes, buffer.get_dtype()
    except (AttributeError, NotImplementedError, TypeError):
        return None


def work_of_part(part: Any) -> int:
    """Return over how many elements a scheduled node of a generated kernel loops.

    torch: `get_ranges()` gives the sizes of its loops, and those of its reduction.
    for: the time of a kernel is divided among what it computes.
    """
    from torch._inductor.virtualized import V

    work = 1
    for sizes in part.get_ranges():
        for size in sizes:
            work *= int(V.graph.sizevars.optimization_hint(size))
    return work


def origins_of(node: Any) -> list[Any]:
    """Return the nodes of the lowered graph that a buffer or an operator computes.

    An operator with several results is said to come from everything around them; of these only the
    nodes that call just this operator count.

    torch: `origins` is a set in no order; `op_overload` is what an extern kernel calls, and
        `get_origin_node()` its one node where that is known.
    for: a call is put down to the right line of the user's model.
    """
    origins = sorted(node.origins, key=lambda origin: origin.name)
    operator = getattr(node, "op_overload", None)
    same = [origin for origin in origins if operator is not None and origin.target is operator]
    if same:
        return same
    own = node.get_origin_node()
    if operator is not None and own is not None:
        return [own]
    return origins

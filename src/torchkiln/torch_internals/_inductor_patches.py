"""Places where Inductor decides something that a program needs otherwise."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock


@contextlib.contextmanager
def concatenated_in_memory_of_their_own() -> Iterator[None]:
    """Let no buffer that was written in place become a part of a concatenated tensor.

    Inductor (torch 2.13) makes the inputs of a concatenation slices of its result. If one of them
    was written in place (scatter_reduce and relatives), later readers of the slice do not keep the
    whole alive, and its memory is given to another tensor before they read: wrong numbers. Such an
    input is copied instead.

    torch: `ConcatKernel.can_realize_into_without_copy(src, dst)` decides for each input;
        `V.graph.mutated_buffers` holds the names of those that were written.
    for: the numbers of eager PyTorch.
    """
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    original = ir.ConcatKernel.can_realize_into_without_copy.__func__  # type: ignore[attr-defined]

    def can_realize(cls: Any, src: Any, dst: Any = None) -> bool:
        if ir.try_get_name(src) in V.graph.mutated_buffers:
            return False
        return bool(original(cls, src, dst))

    with mock.patch.object(
        ir.ConcatKernel, "can_realize_into_without_copy", classmethod(can_realize)
    ):
        yield


@contextlib.contextmanager
def kept_whole_if_not_read() -> Iterator[None]:
    """Let Inductor cut down no buffer to a row if somebody waits for it without reading it.

    Loops that follow each other may share their outer one; then a buffer between them needs only
    one row, if all its users read it from the first element to the last. Inductor (torch 2.13)
    asks each user where it reads. But a weight that is written in place after its last reader is a
    user that reads nothing, and the question ends with `KeyError: 'buf20'`. The distances of
    vectors from a code book, `a² - 2ab + b²`, are such a step. The buffer is kept whole instead.

    torch: `LoopBody.get_read_expr(buffer_name)` raises KeyError of what is not read; its one caller
        (`try_outer_loop_fusion_with_local_buf`) compares what it returns with the index of a
        contiguous tensor, which None is not.
    for: steps whose update shares loops with backward.
    """
    from torch._inductor.loop_body import LoopBody

    original = LoopBody.get_read_expr

    def get_read_expr(body: Any, buffer_name: str) -> Any:
        try:
            return original(body, buffer_name)
        except KeyError:
            return None

    with mock.patch.object(LoopBody, "get_read_expr", get_read_expr):
        yield


@contextlib.contextmanager
def biases_stay_apart() -> Iterator[None]:
    """Keep Inductor from making `addmm` of a product and an addition again, on the CPU.

    torch: `post_grad.should_prefer_unfused_addmm` is asked with the match, whose `inp` is the bias.
    for: biases that were taken out of products (`runtime/passes/_biases.py`) stay out.
    """
    from torch._inductor.fx_passes import post_grad

    original = post_grad.should_prefer_unfused_addmm

    def prefer_unfused(match: Any) -> bool:
        is_cpu = match.kwargs["inp"].meta["val"].device.type == "cpu"
        return is_cpu or bool(original(match))

    with mock.patch.object(post_grad, "should_prefer_unfused_addmm", prefer_unfused):
        yield


@contextlib.contextmanager
def fused_only_if(may_fuse: Callable[[Any, Any], bool]) -> Iterator[None]:
    """Let Inductor fuse two scheduled nodes only if `may_fuse` says so, too.

    torch: the choices handler's `can_fuse` is asked for every pair of scheduled nodes;
        `get_nodes()` gives the parts of one, with the recorded nodes in `part.node.origins`.
    for: recomputed operations are not fused with their originals, which would keep the memory.
    """
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    class Choices(InductorChoices):
        @staticmethod
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            return may_fuse(node1, node2) and InductorChoices.can_fuse(
                scheduler, node1, node2, shared_data_score
            )

    with V.set_choices_handler(Choices()):
        yield


@contextlib.contextmanager
def compiler_replaced(
    headers: Path,
    precompile: Callable[..., str],
    run: Callable[[str, str], None],
) -> Iterator[None]:
    """Let Inductor call `run` for the C++ compiler, and `precompile` for headers it keeps.

    Args:
        headers: Where compiled headers are kept.
        precompile: Called with torch's own function and its arguments (header, command line,
            keywords); returns the path of the header, beside which its compiled form lies.
        run: Called with a command line and the folder to run it in.

    torch: `codecache._precompile_header` is a memoised function that keeps its results below
        `_HEADER_DIR`, with locks in `_HEADER_LOCK_DIR`; all commands go through
        `cpp_builder.run_compile_cmd(command_line, cwd)`.
    for: no compiler outlives us, and no header that was compiled by half is used.
    """
    from torch._inductor import codecache, cpp_builder

    compile_header = codecache._precompile_header.__wrapped__
    with (
        mock.patch.object(codecache, "_HEADER_DIR", str(headers)),
        mock.patch.object(codecache, "_HEADER_LOCK_DIR", str(headers / "locks")),
        mock.patch.object(
            codecache, "_precompile_header", functools.partial(precompile, compile_header)
        ),
        mock.patch.object(cpp_builder, "run_compile_cmd", run),
    ):
        yield


@contextlib.contextmanager
def around_builds(around: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Let `around(build)` run every build of generated C++; it returns what `build()` returned.

    torch: `CppBuilder.build` is one command to the compiler.
    for: the progress bar advances while code is compiled.
    """
    from torch._inductor.cpp_builder import CppBuilder

    original = CppBuilder.build

    def build(builder: Any, *args: Any, **kwargs: Any) -> Any:
        return around(lambda: original(builder, *args, **kwargs))

    with mock.patch.object(CppBuilder, "build", build):
        yield

"""From static graphs to native code: one package file with all entry points of a program."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from torchkiln.core import CompileError, TorchkilnError
from torchkiln.core._room import free_bytes, is_full_disk, megabytes
from torchkiln.runtime.capture._capture import Captured, Entry, without_fused_recurrence
from torchkiln.runtime.compile._inductor_workspace import VARIABLE as WORKSPACE_VARIABLE
from torchkiln.runtime.compile._inductor_workspace import inductor_workspace, private_workspace
from torchkiln.runtime.compile._marks import mark_calls
from torchkiln.runtime.compile._progress import CompileProgress
from torchkiln.runtime.passes._biases import add_biases_after_products
from torchkiln.runtime.passes._layouts import move_to_channels_last
from torchkiln.runtime.passes._numbers import number_nodes
from torchkiln.runtime.recompute._fusion import phases_apart
from torchkiln.torch_internals._fake_tensors import fake_mode_with_sizes
from torchkiln.torch_internals._inductor import compile_graph, write_package
from torchkiln.torch_internals._inductor_patches import (
    biases_stay_apart,
    concatenated_in_memory_of_their_own,
    kept_whole_if_not_read,
)
from torchkiln.torch_internals._inductor_plan import plans_given_to

aten = torch.ops.aten


def build_package(
    captured: Captured, path: Path, module: nn.Module, progress: CompileProgress
) -> None:
    """Compile every entry of the program and write them as one package.

    Raises:
        CompileError: if code generation or the C++ compiler fails, or the package has no room.
        WriteError: if the compiler's output has no room.
        TrustError: if somebody else could have put code where it is generated.
    """
    files: dict[str, Any] = {}
    share = 1.0 / len(captured.entries)
    for name, entry in captured.entries.items():
        progress.start_entry(name, share)
        try:
            with progress.watch_compiler():
                files[name] = compile_entry(entry, module, bool(captured.recomputed))
        except TorchkilnError:
            raise
        except Exception as error:
            raise CompileError(explain_failure(error)) from error
    progress.enter("packaging")
    try:
        # Written by Python: torch's writer ends the process when the disk is full.
        content = io.BytesIO()
        write_package(content, files)
        path.write_bytes(content.getbuffer())
    except (OSError, RuntimeError) as error:
        raise CompileError(
            f"the executable could not be written to {path} ({error}); free some space, or set "
            "TMPDIR to a folder with room"
        ) from error


def compile_entry(
    entry: Entry,
    module: nn.Module,
    recomputes: bool,
    read: Callable[[list[Any], str], str] = mark_calls,
) -> Any:
    """Compile one entry and return its files; its graph is used up.

    Args:
        entry: What to compile.
        module: That it comes from.
        recomputes: Whether backward repeats parts of forward.
        read: Called with the lines of Inductor's plan and the digest of the entry's graph; returns
            C++ code that they need.
    """
    options = _options(entry.graph)
    digest = number_nodes(entry.graph)
    graph, inputs = _prepare(entry)
    apart = phases_apart() if recomputes else contextlib.nullcontext()
    with (
        torch.no_grad(),
        without_fused_recurrence(module),
        _without_own_warnings(),
        concatenated_in_memory_of_their_own(),
        kept_whole_if_not_read(),
        biases_stay_apart(),
        private_workspace(),
        plans_given_to(lambda lines: read(lines, digest)),
        apart,
    ):
        return compile_graph(graph, inputs, options)


def _options(graph: fx.GraphModule) -> dict[str, Any]:
    return {
        "aot_inductor.package": True,
        # The host part runs once a step: optimising it costs seconds and gains nothing.
        "aot_inductor.compile_wrapper_opt_level": "O0",
        # The same random stream as eager PyTorch.
        "fallback_random": True,
        # Channels last pays for convolutions of some width and costs conversions for thin ones.
        "layout_optimization": _has_wide_convolution(graph),
    }


def _has_wide_convolution(graph: fx.GraphModule) -> bool:
    """Whether a convolution has at least 16 input channels."""
    for node in graph.graph.nodes:
        if node.target is aten.convolution.default:
            weight = node.args[1].meta.get("val")
            if weight is None or weight.shape[1] >= 16:
                return True
    return False


def _prepare(entry: Entry) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Give the graph's inputs to a mode of their own, one that Inductor can ask about sizes."""
    add_biases_after_products(entry.graph)
    with fake_mode_with_sizes():
        inputs = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
            for t in entry.inputs
        ]
        if _has_wide_convolution(entry.graph):
            move_to_channels_last(entry.graph, inputs)
    for node in entry.graph.graph.nodes:
        for key in ("val", "tensor_meta"):
            node.meta.pop(key, None)
    return entry.graph, inputs


@contextlib.contextmanager
def _without_own_warnings() -> Iterator[None]:
    """Silence what no user can act on: deprecated parts of torch, operators that stay calls."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Torchinductor does not support code generation")
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


def explain_failure(error: Exception) -> str:
    """Return what went wrong in Inductor or the C++ compiler, and what to do about it."""
    if is_full_disk(error):
        return _explain_full_disk()
    text = f"{type(error).__name__}: {error}"
    failed = isinstance(error, subprocess.CalledProcessError) or "C++ compiler" in text
    if failed or _is_missing_compiler(error) or "g++" in text:
        return (
            f"the C++ compiler failed ({text[:2000]}); install g++ (Debian: apt-get install g++) "
            "or run with backend='capture'"
        )
    return (
        f"Inductor could not generate code for this program ({text[:2000]}); "
        "backend='capture' runs the same static graph without code generation"
    )


def _explain_full_disk() -> str:
    workspace, temporary = inductor_workspace(), tempfile.gettempdir()
    return (
        f"there is no room for what is compiled ({megabytes(free_bytes(workspace))} are free in "
        f"{workspace}, {megabytes(free_bytes(Path(temporary)))} in {temporary}); free some space, "
        f"or set {WORKSPACE_VARIABLE} and TMPDIR to folders with room"
    )


def _is_missing_compiler(error: Exception) -> bool:
    if not isinstance(error, FileNotFoundError):
        return False
    named = shlex.split(os.environ.get("CXX", ""))[:1]
    names = {os.path.basename(name) for name in ("g++", "c++", "clang++", *named)}
    return os.path.basename(str(error.filename)) in names

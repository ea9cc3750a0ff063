"""What runs a step: native code, a static graph, or plain PyTorch, behind one `run`."""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

# The operators that a package may call by name are registered by this import.
import torchkiln.ops  # noqa: F401
from torchkiln.core import ExecutableError, ScratchDirectory
from torchkiln.core._room import free_bytes, is_full_disk, megabytes
from torchkiln.data._structure import Node
from torchkiln.runtime.capture._entries import Entries, EntryResult
from torchkiln.runtime.execute._clocked import ClockedGraph, ClockedNative, ClockedRun, Run
from torchkiln.runtime.execute._forks import survive_forks
from torchkiln.runtime.execute._heap import keep_freed_memory_if_small
from torchkiln.runtime.execute._marks import Marks, find_libraries
from torchkiln.runtime.passes._numbers import graph_digest
from torchkiln.torch_internals._autograd import below_autograd
from torchkiln.torch_internals._inductor import load_package

# The environment belongs to all threads.
_environment_lock = threading.Lock()


class Executable(abc.ABC):
    """Entry points by name; inputs are changed in place, outputs are new tensors."""

    @abc.abstractmethod
    def entry(self, name: str) -> Run:
        """Return the function of one entry point."""

    def clocked(self, name: str) -> ClockedRun:
        """Return an entry point that tells how long each of its calls takes.

        Raises:
            ExecutableError: That cannot be told.
        """
        raise ExecutableError(
            "this program runs as plain Python, so its calls cannot be timed one by one; profile "
            "it with backend='inductor' or backend='capture'"
        )

    @property
    def writes_constants(self) -> bool:
        """Whether a run may change plain tensor attributes, which then need a copy for each call.

        A recorded graph works on copies of its own where it writes to them.
        """
        return False

    @property
    def reached(self) -> set[int] | None:
        """Positions of the update's parameters that a gradient reached so far; None: all of them.

        What is recorded ahead updates those parameters only that gradients reach.
        """
        return None

    def output_node(self, recorded: Node) -> Node:
        """Return the structure of the outputs of the latest run: what was recorded ahead of it."""
        return recorded


class NativeExecutable(Executable):
    """A package file, loaded. The file is native code: it is executed, so it must be trusted."""

    def __init__(self, path: Path, device: torch.device, entries: Sequence[str]) -> None:
        index = -1 if device.type == "cpu" else (device.index or 0)
        self._is_new = device.type == "cpu"
        survive_forks()
        # torch unpacks the file into a temporary folder, which nobody would remove if the process
        # were killed; in one of ours it goes with the next start.
        self._unpacked = ScratchDirectory()
        try:
            with _temporary_files_in(self._unpacked.path):
                # Loaded at once: the file need not stay after this.
                self._loaders = {name: _load(path, name, index) for name in entries}
            is_marked = device.type == "cpu"
            self.marks = _find_marks(self._unpacked.path, entries) if is_marked else {}
        except BaseException:
            self._unpacked.remove()
            raise
        if device.type == "cpu":
            self._unpacked.remove()  # the system keeps what is loaded

    def entry(self, name: str) -> Run:
        loader = self._loaders[name]

        def run(inputs: list[Tensor]) -> list[Tensor]:
            # Backward is part of the package: operators need not look for somebody to record them.
            with below_autograd():
                outputs: list[Tensor] = loader.run(inputs)
            if self._is_new:
                self._is_new = False
                keep_freed_memory_if_small()
            return outputs

        return run

    def clocked(self, name: str) -> ClockedRun:
        if name not in self.marks:
            raise ExecutableError(
                "this executable has no clock reads: it was made by an earlier version of "
                "Torchkiln, or runs on a GPU, where torch.profiler tells the time of each kernel; "
                "call destroy() on the program to compile it again"
            )
        return ClockedNative(self.entry(name), self.marks[name])


def _find_marks(unpacked: Path, entries: Sequence[str]) -> dict[str, Marks]:
    """Return the clock reads of each entry; none of code that has none."""
    marks = {}
    for name, library in find_libraries(unpacked, list(entries)).items():
        # A file of an earlier version runs as well; it cannot be profiled.
        with contextlib.suppress(ExecutableError, OSError):
            marks[name] = Marks(library)
    return marks


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Let native code make its temporary files in `folder`."""
    with _environment_lock:
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(folder)
        try:
            yield
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before


def _load(path: Path, name: str, index: int) -> Any:
    try:
        return load_package(path, name, index)
    except RuntimeError as error:
        place = Path(tempfile.gettempdir())
        # torch says "file close failed" of a disk that is full.
        if is_full_disk(error) or free_bytes(place) < 4 * path.stat().st_size:
            raise ExecutableError(
                f"there is no room to unpack {path} ({megabytes(free_bytes(place))} are free in "
                f"{place}); free some space, or set TMPDIR to another place"
            ) from error
        raise ExecutableError(
            f"{path} cannot be loaded ({error}); delete it and compile again"
        ) from error


class GraphExecutable(Executable):
    """The captured graphs, run operator by operator."""

    def __init__(self, graphs: dict[str, fx.GraphModule]) -> None:
        self._graphs = graphs
        # By name of the entry; before the graphs change below.
        self.digests = {name: graph_digest(graph) for name, graph in graphs.items()}
        for graph in graphs.values():
            _forgive_strides(graph)

    def entry(self, name: str) -> Run:
        return _run_graph(self._graphs[name])

    def clocked(self, name: str) -> ClockedRun:
        return ClockedGraph(self._graphs[name], _run_graph)


def _run_graph(graph: fx.GraphModule) -> Run:
    def run(inputs: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            outputs: list[Tensor] = graph(*inputs)
        return outputs

    return run


def _forgive_strides(graph: fx.GraphModule) -> None:
    """Let views copy where a kernel returned other strides than its shape-only form foretold.

    Some do (mse_loss_backward of a transposed input); code generation has its own view of strides.
    """
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    graph.recompile()


class EagerExecutable(Executable):
    """The step function itself, on real tensors: what it does is known after it ran."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._node: Node | None = None
        self._reached: set[int] = set()

    @property
    def writes_constants(self) -> bool:
        return True

    @property
    def reached(self) -> set[int]:
        return self._reached

    def output_node(self, recorded: Node) -> Node:
        return recorded if self._node is None else self._node

    def entry(self, name: str) -> Run:
        function: Callable[..., EntryResult] = getattr(self._entries, name)
        if name == "update":
            # The set itself: it fills up as gradients appear.
            function = functools.partial(function, reached=self._reached)

        def run(inputs: list[Tensor]) -> list[Tensor]:
            # Aliases: forward may call requires_grad_() on what it is given.
            own = [t if isinstance(t, nn.Parameter) else t.detach() for t in inputs]
            result = function(*own)
            self._reached |= result.reached
            if result.node is not None:
                self._node = result.node
            return result.outputs

        return run

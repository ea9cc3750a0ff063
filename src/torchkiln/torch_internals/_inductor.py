"""Calling Inductor: from a graph to native code, and from a package to something that runs.

`torch._inductor` takes a second to import, so it is imported where it is used.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

# torch: how the source file ends that Inductor writes for the part of an entry that calls kernels;
# the kernels are in another one. for: both are compiled at the same time.
HOST_PART = ".wrapper.cpp"


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor], options: dict[str, Any]) -> Any:
    """Generate and compile native code for a graph, and return what `write_package` takes.

    torch: `aot_compile` with `aot_inductor.package` returns the list of files it made; flat lists
        of tensors go in and come out, and inputs are changed in place.
    for: the native backend.
    """
    from torch._inductor import aot_compile

    return aot_compile(graph, tuple(inputs), options=options)


def write_package(content: io.BytesIO, files: dict[str, Any]) -> None:
    """Write compiled entry points, by name, as one package.

    torch: `package_aoti` writes to a file object what `load_package` reads under these names.
    for: one executable file holds all entry points of a program.
    """
    from torch._inductor.package.package import package_aoti

    package_aoti(content, files)


def load_package(path: Path, name: str, device_index: int) -> Any:
    """Return one entry point of a package; its `run` takes and gives a list of tensors.

    torch: `AOTIModelPackageLoader(path, name, single-threaded, number of runners, device)` unpacks
        into TMPDIR and loads at once; -1 is the CPU; a file that is no package is a RuntimeError.
    for: a step is one call of native code.
    """
    return torch._C._aoti.AOTIModelPackageLoader(str(path), name, True, 1, device_index)


def default_workspace() -> str:
    """Return the folder in which torch would generate code if nobody said otherwise.

    torch: Inductor writes it into `TORCHINDUCTOR_CACHE_DIR` itself when it compiles.
    for: that is not taken for a choice of the user's.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return default_cache_dir()


def header_of_kernels(command: Mapping[str, Any]) -> str | None:
    """Return the header that generated kernels include, if it is compiled once for all.

    torch: `codecache._get_cpp_prefix_header(device)`; it is compiled after that of the part that
        calls kernels, with the same settings but for `min_optimize`.
    for: both headers are compiled at the same time.
    """
    from torch._inductor import codecache

    return codecache._get_cpp_prefix_header(command["device_type"])


def compiler_error(command: list[str], said: str) -> Exception:
    """Return the error by which Inductor knows that the C++ compiler failed.

    torch: `CppCompileError` prints the command and what the compiler said.
    for: `run_compiler` stands in for Inductor's own call of the compiler.
    """
    from torch._inductor import exc

    return exc.CppCompileError(command, said)

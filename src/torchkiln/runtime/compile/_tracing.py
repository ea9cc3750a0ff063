"""Building what no cache holds: the step is traced, and compiled if the backend makes code."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from torchkiln.core import user_cache_dir, warn_user
from torchkiln.core._places import is_user_cache_given_up
from torchkiln.data._structure import ConstantNode
from torchkiln.ops._needs import natives_of_module
from torchkiln.runtime.cache._cache import ExecutableCache
from torchkiln.runtime.cache._graph_key import graph_key
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.capture._capture import Captured, capture, recomputed_modules
from torchkiln.runtime.capture._entries import Entries, entry_names
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.compile._helpers import prepare_helpers
from torchkiln.runtime.compile._inductor import build_package
from torchkiln.runtime.compile._progress import CompileProgress
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._executable import (
    EagerExecutable,
    GraphExecutable,
    NativeExecutable,
)
from torchkiln.runtime.optim._arrangement import Arrangement


def build_eager(step: StepFunction, batch: list[Tensor], arrangement: Arrangement | None) -> Built:
    step = dataclasses.replace(step, recompute=recomputed_modules(step, batch))
    names = entry_names(step.options, training=arrangement is not None)
    natives = natives_of_module(step.binding.module)
    prepare_helpers(natives, show_progress=step.options.show_progress)
    updated = [] if arrangement is None else list(arrangement.names)
    # The structure of the outputs is known after each run: nothing is recorded.
    metadata = ProgramMetadata(names, ConstantNode("output", None), updated, [], [], [])
    return Built(EagerExecutable(Entries(step, arrangement)), metadata)


def build_graph(step: StepFunction, batch: list[Tensor], arrangement: Arrangement | None) -> Built:
    with CompileProgress(step.options.show_progress, step.name) as progress:
        captured = capture(step, batch, arrangement, prepare=progress.build_helpers)
    graphs = {name: entry.graph for name, entry in captured.entries.items()}
    metadata = captured.metadata()
    return Built(GraphExecutable(graphs), metadata, compiled=1, captured=1, phases=progress.seconds)


def build_native(
    step: StepFunction,
    batch: list[Tensor],
    arrangement: Arrangement | None,
    device: torch.device,
    path: Path,
) -> Built:
    with CompileProgress(step.options.show_progress, step.name) as progress:
        captured = capture(step, batch, arrangement, prepare=progress.build_helpers)
        built = compile_native(captured, step, device, path, progress)
    return dataclasses.replace(built, phases=progress.seconds)


def compile_native(
    captured: Captured,
    step: StepFunction,
    device: torch.device,
    path: Path,
    progress: CompileProgress,
) -> Built:
    """Compile what was recorded, into a file that no cache has."""
    metadata = captured.metadata()
    build_package(captured, path, step.binding.module, progress)
    executable = NativeExecutable(path, device, metadata.entries)
    return Built(executable, metadata, path, compiled=1, captured=1)


def build_through_cache(
    step: StepFunction,
    batch: list[Tensor],
    arrangement: Arrangement | None,
    device: torch.device,
    cache: ExecutableCache,
    key: str | None,
    make_workspace: Callable[[], Path],
) -> Built:
    """Trace, then take the executable of the same graph, or compile it while others wait."""
    with CompileProgress(step.options.show_progress, step.name) as progress:
        captured = capture(step, batch, arrangement, prepare=progress.build_helpers)
        digest, built = compile_through_cache(
            captured, step, device, cache, make_workspace, progress
        )
    plain = built.metadata.to_json()
    if key is not None and plain is not None:
        with contextlib.suppress(OSError):  # the next start traces once more
            cache.remember(key, {"graph": digest, "program": plain})
    return dataclasses.replace(built, phases=progress.seconds)


def compile_through_cache(
    captured: Captured,
    step: StepFunction,
    device: torch.device,
    cache: ExecutableCache,
    make_workspace: Callable[[], Path],
    progress: CompileProgress,
) -> tuple[str, Built]:
    """Return the digest of what was recorded, and its executable, which others may have made."""
    compiled = 0
    digest = graph_key(captured, device)
    metadata = captured.metadata()
    with cache.holding(digest) as package:
        if package is None:
            package = make_workspace() / "program.pt2"
            build_package(captured, package, step.binding.module, progress)
            _keep(cache, digest, package, _describe(step))
            compiled = 1
        executable = NativeExecutable(package, device, metadata.entries)
    return digest, Built(executable, metadata, package, compiled, captured=1)


def _keep(cache: ExecutableCache, digest: str, package: Path, description: str) -> None:
    """Store what was compiled; a cache that cannot be written costs time, not the program."""
    try:
        cache.store(digest, package, description)
    except OSError as error:
        if is_user_cache_given_up() and cache.directory.is_relative_to(user_cache_dir()):
            return  # a warning has said that nothing is kept there
        warn_user(
            f"the executable could not be kept in {cache.directory} "
            f"({error.__cause__ or error}), so the next start compiles again; free some space, or "
            "choose another cache_dir"
        )


def _describe(step: StepFunction) -> str:
    module = step.binding.module
    shapes = ", ".join(f"{form.name}{list(form.shape)}" for form in step.signature.forms)
    return f"{'training' if step.training else 'inference'} {type(module).__name__}({shapes})"

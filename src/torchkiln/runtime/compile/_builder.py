"""Getting an executable: from the cache by fast key, by graph key, or by compiling."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import Backend, Options, warn_user
from torchkiln.data._structure import (
    ConstantNode,
    CustomNode,
    MappingNode,
    Node,
    SequenceNode,
    TensorNode,
)
from torchkiln.runtime.cache._cache import ExecutableCache
from torchkiln.runtime.cache._environment import describe_environment
from torchkiln.runtime.cache._fast_key import fast_key
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.execute._executable import (
    EagerExecutable,
    Executable,
    GraphExecutable,
    NativeExecutable,
)
from torchkiln.runtime.execute._forks import survive_forks
from torchkiln.runtime.optim._optimizers import OptimizerBinding


@dataclass(slots=True)
class Built:
    """An executable and what its caller must know about it."""

    executable: Executable
    metadata: ProgramMetadata
    package: Path | None = None
    compiled: int = 0
    captured: int = 0


def build(
    step: StepFunction,
    batch: list[Tensor],
    optimizer: OptimizerBinding | None,
    device: torch.device,
    make_workspace: Callable[[], Path],
) -> Built:
    """Return an executable for the step, compiled only if no cache has it.

    What is compiled lies in the folder that `make_workspace` returns, as long as the program lives.
    """
    survive_forks()
    options = step.options
    if options.backend is Backend.EAGER:
        return _build_eager(step, batch, optimizer)
    if options.backend is Backend.CAPTURE:
        return _build_graph(step, batch, optimizer)
    if options.cache_dir is None:
        return _compile(step, batch, optimizer, device, make_workspace() / "program.pt2")
    cache = ExecutableCache(options.cache_dir, options.cache_limit_bytes, options.trusted_dirs)
    key = _fast_key(step, optimizer, device)
    if key is not None:
        found = _from_index(cache, key, device)
        if found is not None:
            return found
    return _from_graph(step, batch, optimizer, device, cache, key, make_workspace)


def _build_eager(
    step: StepFunction, batch: list[Tensor], optimizer: OptimizerBinding | None
) -> Built:
    from torchkiln.runtime.capture._capture import recomputed_modules
    from torchkiln.runtime.capture._entries import Entries

    step.recompute = recomputed_modules(step, batch)
    names = _entry_names(step, optimizer)
    updated = [] if optimizer is None else list(optimizer.names)
    # The structure of the outputs is read from `step` after each run: nothing is recorded.
    metadata = ProgramMetadata(names, ConstantNode("output", None), updated, [], [], [])
    return Built(EagerExecutable(Entries(step, optimizer)), metadata)


def _entry_names(step: StepFunction, optimizer: OptimizerBinding | None) -> list[str]:
    if optimizer is None:
        return ["infer"]
    return ["step"] if step.options.micro_batches_per_update == 1 else ["accumulate", "update"]


def _build_graph(
    step: StepFunction, batch: list[Tensor], optimizer: OptimizerBinding | None
) -> Built:
    from torchkiln.runtime.capture._capture import capture
    from torchkiln.runtime.compile._progress import CompileProgress

    with CompileProgress(step.options.show_progress):
        captured = capture(step, batch, optimizer)
    graphs = {name: entry.graph for name, entry in captured.entries.items()}
    metadata = ProgramMetadata.of(captured)
    return Built(GraphExecutable(graphs), metadata, compiled=1, captured=1)


def _compile(
    step: StepFunction,
    batch: list[Tensor],
    optimizer: OptimizerBinding | None,
    device: torch.device,
    path: Path,
) -> Built:
    from torchkiln.runtime.capture._capture import capture
    from torchkiln.runtime.compile._inductor import build_package
    from torchkiln.runtime.compile._progress import CompileProgress

    with CompileProgress(step.options.show_progress) as progress:
        captured = capture(step, batch, optimizer)
        build_package(captured, path, step.binding.module, progress)
    metadata = ProgramMetadata.of(captured)
    executable = NativeExecutable(path, device, metadata.entries)
    return Built(executable, metadata, path, compiled=1, captured=1)


def _from_index(cache: ExecutableCache, key: str, device: torch.device) -> Built | None:
    """Return the executable that the fast key points to: nothing is traced."""
    values = cache.lookup(key)
    if values is None:
        return None
    try:
        metadata = ProgramMetadata.from_json(values["program"])
    except Exception:  # of another version, or naming types that are gone
        cache.forget(key)
        return None
    with cache.holding(values["graph"]) as package:
        if package is None:
            return None
        return Built(NativeExecutable(package, device, metadata.entries), metadata, package)


def _from_graph(
    step: StepFunction,
    batch: list[Tensor],
    optimizer: OptimizerBinding | None,
    device: torch.device,
    cache: ExecutableCache,
    key: str | None,
    make_workspace: Callable[[], Path],
) -> Built:
    """Trace, then take the executable of the same graph, or compile it while others wait."""
    from torchkiln.runtime.cache._graph_key import graph_key
    from torchkiln.runtime.capture._capture import capture
    from torchkiln.runtime.compile._inductor import build_package
    from torchkiln.runtime.compile._progress import CompileProgress

    compiled = 0
    with CompileProgress(step.options.show_progress) as progress:
        captured = capture(step, batch, optimizer)
        digest = graph_key(captured, device)
        metadata = ProgramMetadata.of(captured)
        with cache.holding(digest) as package:
            if package is None:
                package = make_workspace() / "program.pt2"
                build_package(captured, package, step.binding.module, progress)
                _keep(cache, digest, package, _describe(step))
                compiled = 1
            executable = NativeExecutable(package, device, metadata.entries)
    plain = metadata.to_json()
    if key is not None and plain is not None:
        with contextlib.suppress(OSError):  # the next start traces once more
            cache.remember(key, {"graph": digest, "program": plain})
    return Built(executable, metadata, package, compiled, captured=1)


def _keep(cache: ExecutableCache, digest: str, package: Path, description: str) -> None:
    """Store what was compiled; a cache that cannot be written costs time, not the program."""
    try:
        cache.store(digest, package, description)
    except OSError as error:
        warn_user(
            f"the executable could not be kept in {cache.directory} "
            f"({error.__cause__ or error}), so the next start compiles again; free some space, or "
            "choose another cache_dir"
        )


def _describe(step: StepFunction) -> str:
    module = step.binding.module
    shapes = ", ".join(f"{form.name}{list(form.shape)}" for form in step.signature.forms)
    return f"{'training' if step.training else 'inference'} {type(module).__name__}({shapes})"


# Options that change neither the graphs of a program nor the code made of them. Every other one is
# part of the key.
_NOT_IN_KEY = {
    "backend": "only one backend makes executables",
    "cache_dir": "says where an executable lies, not what it does",
    "cache_limit_bytes": "says how many are kept",
    "trusted_dirs": "says which are run",
    "check_finite": "results are looked at after the step",
    "show_progress": "is drawn while a program is built",
    "random_seed": "seeds the generator, which is read when the program runs",
    "output_mode": "outputs are chosen by the loop around the executable",
    "output_period": "outputs are chosen by the loop around the executable",
    "input_grouping": "inputs are ordered by the loop around the executable",
    "num_processes": "divides the data",
    "process_id": "divides the data",
    "device": "is in the description of the environment",
    "recorded": "has no effect",
}


def _fast_key(
    step: StepFunction, optimizer: OptimizerBinding | None, device: torch.device
) -> str | None:
    options: Options = step.options
    names = [field.name for field in dataclasses.fields(options) if field.name not in _NOT_IN_KEY]
    chosen = {name: getattr(options, name) for name in names}
    chosen["anchors"] = [dataclasses.astuple(anchor) for anchor in options.anchors.values()]
    plan: Any = None
    if optimizer is not None:
        rules = [repr(rule) for rule in optimizer.recipe.rules]
        rows = [(row.group, str(row.dtype), row.members) for row in optimizer.rows]
        flags = [optimizer.recipe.clips, optimizer.recipe.scales_loss]
        dtypes = [(name, str(dtype)) for name, dtype in optimizer.recipe.state_dtypes.halved]
        plan = [rules, rows, flags, dtypes, optimizer.names]
    forms = [
        (form.name, tuple(form.shape), form.dtype, form.memory_format)
        for form in step.signature.forms
    ]
    environment = describe_environment(device)
    inputs = _constants(step.signature.node)
    return fast_key(step.binding.module, step.training, chosen, plan, forms, inputs, environment)


def _constants(node: Node) -> Any:
    """Return the structure of the arguments and the constants in it."""
    if isinstance(node, TensorNode):
        return "tensor"
    if isinstance(node, ConstantNode):
        return ("constant", node.value)
    if isinstance(node, CustomNode):
        if node.names is not None:
            constants = list((node.constants or {}).items())
            return ("custom", type(node.original), list(node.names), constants)
        # What an object tells forward beside its tensors is its own business.
        return ("custom", node.original)
    children = [_constants(child) for child in node.children]
    keys = list(node.keys) if isinstance(node, MappingNode) else None
    kind: type = node.kind if isinstance(node, MappingNode | SequenceNode) else object
    return (kind, keys, children)

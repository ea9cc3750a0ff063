"""Getting an executable: from the cache by fast key, by graph key, or by compiling."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import Backend, Options
from torchkiln.data._structure import (
    ConstantNode,
    CustomNode,
    MappingNode,
    Node,
    SequenceNode,
    TensorNode,
)
from torchkiln.runtime._cache import ExecutableCache
from torchkiln.runtime._environment import describe_environment
from torchkiln.runtime._executable import (
    EagerExecutable,
    Executable,
    GraphExecutable,
    NativeExecutable,
)
from torchkiln.runtime._fast_key import fast_key
from torchkiln.runtime._metadata import ProgramMetadata
from torchkiln.runtime._optimizers import OptimizerBinding
from torchkiln.runtime._step import StepFunction


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
    workspace: Path | None,
) -> Built:
    """Return an executable for the step, compiled only if no cache has it."""
    options = step.options
    if options.backend is Backend.EAGER:
        return _build_eager(step, batch, optimizer)
    if options.backend is Backend.CAPTURE:
        return _build_graph(step, batch, optimizer)
    if options.cache_dir is None:
        assert workspace is not None
        return _compile(step, batch, optimizer, device, workspace / "program.pt2")
    cache = ExecutableCache(options.cache_dir, options.cache_limit_bytes)
    key = _fast_key(step, optimizer, device)
    if key is not None:
        found = _from_index(cache, key, device)
        if found is not None:
            return found
    return _from_graph(step, batch, optimizer, device, cache, key)


def _build_eager(
    step: StepFunction, batch: list[Tensor], optimizer: OptimizerBinding | None
) -> Built:
    from torchkiln.runtime._capture import recomputed_modules
    from torchkiln.runtime._entries import Entries

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
    from torchkiln.runtime._capture import capture
    from torchkiln.runtime._progress import CompileProgress

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
    from torchkiln.runtime._capture import capture
    from torchkiln.runtime._inductor import build_package
    from torchkiln.runtime._progress import CompileProgress

    with CompileProgress(step.options.show_progress) as progress:
        captured = capture(step, batch, optimizer)
        build_package(captured, path, step.binding.module, progress)
    metadata = ProgramMetadata.of(captured)
    return Built(NativeExecutable(path, device), metadata, path, compiled=1, captured=1)


def _from_index(cache: ExecutableCache, key: str, device: torch.device) -> Built | None:
    """Return the executable that the fast key points to: nothing is traced."""
    values = cache.lookup(key)
    if values is None:
        return None
    package = cache.find(values["graph"])
    if package is None:
        return None
    metadata = ProgramMetadata.from_json(values["program"])
    return Built(NativeExecutable(package, device), metadata, package)


def _from_graph(
    step: StepFunction,
    batch: list[Tensor],
    optimizer: OptimizerBinding | None,
    device: torch.device,
    cache: ExecutableCache,
    key: str | None,
) -> Built:
    """Trace, then take the executable of the same graph, or compile it while others wait."""
    from torchkiln.runtime._capture import capture
    from torchkiln.runtime._graph_key import graph_key
    from torchkiln.runtime._inductor import build_package
    from torchkiln.runtime._progress import CompileProgress

    compiled = 0
    with CompileProgress(step.options.show_progress) as progress:
        captured = capture(step, batch, optimizer)
        digest = graph_key(captured, device)
        package = cache.find(digest)
        if package is None:
            with cache.lock(digest):
                package = cache.find(digest)
                if package is None:
                    cache.directory.mkdir(parents=True, exist_ok=True)
                    fresh = cache.directory / f"{digest}.{id(step)}.building.pt2"
                    try:
                        build_package(captured, fresh, step.binding.module, progress)
                        package = cache.store(digest, fresh, _describe(step))
                    finally:
                        fresh.unlink(missing_ok=True)
                    compiled = 1
    metadata = ProgramMetadata.of(captured)
    plain = metadata.to_json()
    if key is not None and plain is not None:
        cache.remember(key, {"graph": digest, "program": plain})
    return Built(NativeExecutable(package, device), metadata, package, compiled, captured=1)


def _describe(step: StepFunction) -> str:
    module = step.binding.module
    shapes = ", ".join(f"{form.name}{list(form.shape)}" for form in step.signature.forms)
    return f"{'training' if step.training else 'inference'} {type(module).__name__}({shapes})"


_KEY_OPTIONS = (
    "device_iterations",
    "gradient_accumulation",
    "replication_factor",
    "input_group_size",
    "reduction",
    "precision",
    "recompute",
    "anchors",
)


def _fast_key(
    step: StepFunction, optimizer: OptimizerBinding | None, device: torch.device
) -> str | None:
    options: Options = step.options
    chosen = {name: getattr(options, name) for name in _KEY_OPTIONS}
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

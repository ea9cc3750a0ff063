"""Getting an executable: from the cache by fast key, by graph key, or by compiling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
from torchkiln.ops import registered_custom_ops
from torchkiln.runtime.cache._cache import ExecutableCache
from torchkiln.runtime.cache._environment import describe_environment
from torchkiln.runtime.cache._fast_key import fast_key
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.capture._entries import entry_names
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.compile._helpers import prepare_helpers
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._executable import NativeExecutable
from torchkiln.runtime.execute._forks import survive_forks
from torchkiln.runtime.optim._arrangement import Arrangement


def build(
    step: StepFunction,
    batch: list[Tensor],
    arrangement: Arrangement | None,
    device: torch.device,
    make_workspace: Callable[[], Path],
) -> Built:
    """Return an executable for the step, compiled only if no cache has it.

    What is compiled lies in the folder that `make_workspace` returns, as long as the program lives.
    """
    survive_forks()
    options = step.options
    if options.backend is not Backend.INDUCTOR or options.cache_dir is None:
        return _build_without_cache(step, batch, arrangement, device, make_workspace)
    cache = ExecutableCache(options.cache_dir, options.cache_limit_bytes, options.trusted_dirs)
    key = _fast_key(step, arrangement, device)
    if key is not None:
        found = _from_index(cache, key, device, show_progress=options.show_progress)
        if found is not None:
            return found
    from torchkiln.runtime.compile._tracing import build_through_cache

    return build_through_cache(step, batch, arrangement, device, cache, key, make_workspace)


def _build_without_cache(
    step: StepFunction,
    batch: list[Tensor],
    arrangement: Arrangement | None,
    device: torch.device,
    make_workspace: Callable[[], Path],
) -> Built:
    from torchkiln.runtime.compile._tracing import build_eager, build_graph, build_native

    if step.options.backend is Backend.EAGER:
        return build_eager(step, batch, arrangement)
    if step.options.backend is Backend.CAPTURE:
        return build_graph(step, batch, arrangement)
    return build_native(step, batch, arrangement, device, make_workspace() / "program.pt2")


def _from_index(
    cache: ExecutableCache, key: str, device: torch.device, *, show_progress: bool
) -> Built | None:
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
        prepare_helpers(set(metadata.natives), show_progress=show_progress)
        return Built(NativeExecutable(package, device, metadata.entries), metadata, package)


# Options that change neither the graphs of a program nor the code made of them. Every other one is
# part of the key.
_NOT_IN_KEY = {
    "backend": "only one backend makes executables",
    "cache_dir": "says where an executable lies, not what it does",
    "cache_limit_bytes": "says how many are kept",
    "trusted_dirs": "says which are run",
    "check_finite": "results are looked at after the step",
    "show_progress": "is drawn while a program is built",
    "profile_dir": "clocks are read in every executable; it says where a report goes",
    "random_seed": "seeds the generator, which is read when the program runs",
    "output_mode": "outputs are chosen by the loop around the executable",
    "output_period": "outputs are chosen by the loop around the executable",
    "input_grouping": "inputs are ordered by the loop around the executable",
    "device_iterations": "is counted by the loop; the form of one micro-batch is in the key",
    "gradient_accumulation": "is a number among the inputs; whether there is any is in the key",
    "replication_factor": "is a number among the inputs, like accumulation",
    "input_group_size": "inputs are ordered by the loop around the executable",
    "num_processes": "is a number among the inputs; num_state_parts is in the key",
    "process_id": "says which data this process has",
    "sync_gradients": "sums are exchanged by the loop around the executable",
    "reduction_order": "sums are exchanged by the loop around the executable",
    "shard_optimizer": "the number of parts of the optimiser's state is in the key",
    "collective_timeout_s": "says how long to wait for others",
    "pipeline": "the stages of a program that several processes divide have no fast key",
    "pipeline_schedule": "micro-batches are ordered by the loop around the executable",
    "device": "is in the description of the environment",
    "recorded": "has no effect",
}


def _fast_key(
    step: StepFunction, arrangement: Arrangement | None, device: torch.device
) -> str | None:
    options: Options = step.options
    names = [field.name for field in dataclasses.fields(options) if field.name not in _NOT_IN_KEY]
    chosen = {name: getattr(options, name) for name in names}
    chosen["anchors"] = [dataclasses.astuple(anchor) for anchor in options.anchors.values()]
    # Parts are the shorter the more processes there are.
    chosen["num_state_parts"] = options.num_state_parts
    # One micro-batch an update is another graph than several; how many they are is an input.
    entries = entry_names(options, training=step.training)
    plan: Any = None
    if arrangement is not None:
        rules = [repr(rule) for rule in arrangement.recipe.rules]
        rows = [(row.group, str(row.dtype), row.members) for row in arrangement.rows]
        flags = [arrangement.recipe.clips, arrangement.recipe.scales_loss]
        dtypes = [(name, str(dtype)) for name, dtype in arrangement.recipe.state_dtypes.halved]
        plan = [rules, rows, flags, dtypes, arrangement.names]
    factor = options.combined_factor
    forms = [
        (form.name, _of_micro_batch(form.shape, factor), form.dtype, form.memory_format)
        for form in step.signature.forms
    ]
    environment = describe_environment(device)
    inputs = _constants(step.signature.node)
    # Forward's code names them, but does not lead to what they do.
    functions = list(registered_custom_ops().items())
    return fast_key(
        step.binding.module, entries, chosen, plan, forms, inputs, environment, functions
    )


def _of_micro_batch(shape: torch.Size, factor: int) -> tuple[int, ...]:
    """Return the shape of one micro-batch of an argument that holds `factor` of them."""
    return (shape[0] // factor, *shape[1:]) if shape else ()


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

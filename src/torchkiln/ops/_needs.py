"""Which native helpers a recorded graph, or a module, will call for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from torchkiln.ops._define import native_of
from torchkiln.ops._random import BERNOULLI_HELPER, draws_in_blocks

_ModuleClass = TypeVar("_ModuleClass", bound=type[nn.Module])
# Looked for in classes only, so that no attribute of a user's module is taken for it.
_DECLARED = "__torchkiln_natives__"


def natives_of_graph(graph: fx.GraphModule) -> set[str]:
    """Return the helpers behind the operators of a recorded graph, as far as they run on the CPU.

    Nodes must have the tensors that were recorded ("val" of their meta data).
    """
    return {name for node in graph.graph.nodes for name in _natives_of_node(node)}


def _natives_of_node(node: fx.Node) -> Iterator[str]:
    native = native_of(node.target)
    if native is not None and _is_on_cpu(node.args[0]):
        yield native
    if node.target is torch.ops.torchkiln.draw.default:
        _, kind, _, size, _, dtype, _ = node.args
        if draws_in_blocks(str(kind), size, dtype):  # type: ignore[arg-type]
            yield BERNOULLI_HELPER


def _is_on_cpu(argument: Any) -> bool:
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    return isinstance(value, Tensor) and value.device.type == "cpu"


def uses_natives(*names: str) -> Callable[[_ModuleClass], _ModuleClass]:
    """Declare which helpers the forward of a module class calls for.

    For plain eager PyTorch, where no graph is recorded that would show it.
    """

    def declare(kind: _ModuleClass) -> _ModuleClass:
        setattr(kind, _DECLARED, names)
        return kind

    return declare


def natives_of_module(module: nn.Module) -> set[str]:
    """Return the helpers that the classes of a module's parts declare, if it is on the CPU."""
    tensors = (*module.parameters(), *module.buffers())
    if not any(tensor.device.type == "cpu" for tensor in tensors):
        return set()
    return {name for part in module.modules() for name in getattr(type(part), _DECLARED, ())}

"""Recording functions as graphs, and looking through nested values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map_only


def record_graph(
    function: Callable[..., list[Tensor]],
    inputs: list[Tensor],
    decompositions: dict[Any, Callable[..., Any]],
) -> fx.GraphModule:
    """Return the operators that `function` runs on `inputs`, backward and update included.

    torch: `make_fx` records below autograd, in eager order; a decomposition that returns
        NotImplemented leaves its operator as it is; nodes carry a fake result as `meta["val"]`.
    for: the step is written once, and native code is generated from its recording.
    """
    return make_fx(function, decomposition_table=decompositions)(*inputs)


@contextlib.contextmanager
def nodes_given_to(note: Callable[[fx.Node], None]) -> Iterator[None]:
    """Call `note` with every node right after it was recorded.

    torch: all tracers make their nodes by `TracerBase.create_node`, which copies what
        `fx.traceback.annotate` says into `meta["custom"]`.
    for: a node knows the line of the model that is running.
    """
    original = fx.proxy.TracerBase.create_node

    def create(tracer: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = original(tracer, *args, **kwargs)
        note(node)
        return node

    with mock.patch.object(fx.proxy.TracerBase, "create_node", create):
        yield


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in lists, tuples and dictionaries, as results of operators hold them.

    torch: `tree_leaves` looks into these, and takes everything else for a leaf.
    for: memory behind nodes with several results.
    """
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return `value` with its tensors replaced.

    torch: `tree_map_only` keeps the structure of lists, tuples and dictionaries.
    for: random numbers of a checkpointed block are kept and given back.
    """
    return tree_map_only(Tensor, function, value)


def counts_places_of_memory(target: Any) -> bool:
    """Return whether an operator makes a view by places in memory, whatever it is a view of.

    torch: `as_strided`, and `_reshape_alias`, which decompositions of `reshape` may record.
    for: a part of a step must get the memory that such a view is made of as a whole.
    """
    return target in (
        torch.ops.aten.as_strided.default,
        torch.ops.aten._reshape_alias.default,
    )


def is_unannounced_view(target: Any) -> bool:
    """Return whether the result of an operator is a view although its schema does not say so.

    torch: `_unsafe_view`, which `matmul` and `linear` record.
    for: what writes to memory, and what looks into it, is read from schemas.
    """
    return target is torch.ops.aten._unsafe_view.default

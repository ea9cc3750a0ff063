"""Which module and which phase of the step recorded each node of a graph."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch.fx import traceback

from torchkiln.torch_internals._modules import calls_replaced

_KEY = "torchkiln"


class Phase(enum.Enum):
    """When a node runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@contextlib.contextmanager
def following_modules(
    module: nn.Module, around: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
) -> Iterator[None]:
    """Enter `around(name, args, kwargs)` around every call of a module inside `module`.

    By the class and not by hooks: a recomputation may leave a module by an exception.
    """
    names = {id(child): name for name, child in module.named_modules()}

    def make_call(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(child: nn.Module, *args: Any, **kwargs: Any) -> Any:
            name = names.get(id(child))
            if name is None:
                return original(child, *args, **kwargs)
            with around(name, args, kwargs):
                return original(child, *args, **kwargs)

        return call

    with calls_replaced(make_call):
        yield


@contextlib.contextmanager
def recorded_origins(module: nn.Module) -> Iterator[None]:
    """Note module and phase in the nodes that are recorded meanwhile."""
    gradients = torch.autograd.grad
    phase = Phase.FORWARD

    def enter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return traceback.annotate({_KEY: (name, phase)})

    def grad(*args: Any, **kwargs: Any) -> Any:
        nonlocal phase
        # A gradient that forward itself takes (forces of a potential) is part of forward.
        outer = traceback.get_current_meta().get("custom", {}).get(_KEY)
        if outer is not None:
            return gradients(*args, **kwargs)
        phase = Phase.BACKWARD
        with traceback.annotate({_KEY: ("", phase)}):
            result = gradients(*args, **kwargs)
        phase = Phase.UPDATE
        return result

    with (
        traceback.preserve_node_meta(),
        following_modules(module, enter),
        mock.patch.object(torch.autograd, "grad", grad),
    ):
        yield


def origin(node: fx.Node) -> tuple[str, Phase]:
    """Return the module ("" for the outermost) and the phase that recorded `node`."""
    found: tuple[str, Phase] | None = node.meta.get("custom", {}).get(_KEY)
    return found if found is not None else ("", Phase.UPDATE)


def joint_origin(nodes: Iterable[fx.Node]) -> tuple[str, Phase]:
    """Return the origin of something computed by several nodes: the latest counts.

    A kernel of backward may repeat a cheap piece of forward; it still runs in backward.
    """
    order = list(Phase)
    found = [origin(node) for node in nodes if node.op != "placeholder"]
    return max(found, key=lambda entry: order.index(entry[1]), default=("", Phase.UPDATE))

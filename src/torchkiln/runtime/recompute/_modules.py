"""Modules whose intermediates are computed again in backward instead of being kept.

Such a module runs under `torch.utils.checkpoint`: its inputs are kept, everything else is forgotten
until backward needs it. What torch leaves to the user is taken care of here: buffers (running
statistics of BatchNorm) are updated once, a module that overwrites its own inputs is refused, and
tensors that were marked by `keep_activation` are kept as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchkiln.core import CaptureError, OptionsError
from torchkiln.data import flatten, rebuild
from torchkiln.runtime.recompute._graph import recorded_again
from torchkiln.torch_internals._modules import buffers_of
from torchkiln.torch_internals._tensors import version_of


class _Region:
    """One call of a recomputed module: what its second run needs from the first."""

    def __init__(self, module: nn.Module) -> None:
        self._holders = [buffers_of(child) for child in module.modules() if buffers_of(child)]
        self._snapshots: list[dict[str, Tensor | None]] | None = None
        self._marked: list[Tensor] = []
        self._unread: Iterator[Tensor] | None = None

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Enter around the first run, and around each one after it."""
        _regions.append(self)
        try:
            if self._snapshots is None:
                self._snapshots = [_copies(holder) for holder in self._holders]
                yield
            else:
                self._unread = iter(self._marked)
                with self._past_buffers(self._snapshots), recorded_again():
                    yield
        finally:
            _regions.pop()

    @contextlib.contextmanager
    def _past_buffers(self, snapshots: list[dict[str, Tensor | None]]) -> Iterator[None]:
        """Show the module its buffers as they were before the first run, to read and write."""
        present = [dict(holder) for holder in self._holders]
        try:
            for holder, snapshot in zip(self._holders, snapshots, strict=True):
                holder.update(_copies(snapshot))
            yield
        finally:
            for holder, content in zip(self._holders, present, strict=True):
                holder.clear()
                holder.update(content)

    def mark(self, tensor: Tensor) -> Tensor:
        if self._unread is None:
            # A copy: forward may go on to write to the tensor itself.
            self._marked.append(tensor.detach().clone())
            return tensor
        return next(self._unread).detach().requires_grad_(tensor.requires_grad)


def _copies(buffers: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {key: None if b is None else b.detach().clone() for key, b in buffers.items()}


_regions: list[_Region] = []


def keep_activation(tensor: Tensor) -> Tensor:
    """Return `tensor`, which is kept for backward where its surroundings are recomputed.

    Inside a module that `options.recompute` covers, what lies behind the tensor is recomputed from
    it. With `recompute="auto"`, marks anywhere in forward replace the choice of modules: the whole
    forward is recomputed, piece by piece between marks. Elsewhere this does nothing.
    """
    if _regions:
        return _regions[-1].mark(tensor)
    for listener in _listeners:
        listener(tensor)
    return tensor


_listeners: list[Callable[[Tensor], None]] = []


@contextlib.contextmanager
def marks_reported(listener: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `listener` for every tensor that is marked outside of recomputed modules."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def recomputed(module: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Let the named modules recompute; stay inside for backward, too.

    Raises:
        OptionsError: if there is no module of that name.
    """
    with contextlib.ExitStack() as stack:
        for name, child in _outermost(module, names):
            wrapped = _checkpointed(name, child)
            # In the instance, where capture may have put a replacement of its own.
            if "forward" in child.__dict__:
                stack.callback(child.__dict__.__setitem__, "forward", child.__dict__["forward"])
            else:
                stack.callback(child.__dict__.__delitem__, "forward")
            child.__dict__["forward"] = wrapped
        yield


def _outermost(module: nn.Module, names: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the named modules, without those inside another: they are recomputed with it."""
    if not names:
        return
    known = dict(module.named_modules())
    for name in names:
        if name not in known:
            some = ", ".join(repr(name) for name in list(known)[1:9])
            raise OptionsError(
                f"options.recompute names {name!r}, but {type(module).__name__} has no such module;"
                f" its modules are {some}{', ...' if len(known) > 9 else ''}"
            )
    inside = {
        id(child) for name in names for child in known[name].modules() if child is not known[name]
    }
    for name in dict.fromkeys(names):
        if id(known[name]) not in inside:
            yield name, known[name]


def _checkpointed(name: str, module: nn.Module) -> Callable[..., Any]:
    forward = module.forward

    def recompute(*args: Any, **kwargs: Any) -> Any:
        tensors, node = flatten((args, kwargs), name)
        region = _Region(module)

        def run(*given: Tensor) -> Any:
            own_args, own_kwargs = rebuild(node, list(given))
            with region.run():
                return forward(*own_args, **own_kwargs)

        if not torch.is_grad_enabled():
            return run(*tensors)
        versions = [version_of(tensor) for tensor in tensors]
        # As arguments, not by closure: autograd then notices if somebody overwrites them later.
        result = checkpoint(run, *tensors, use_reentrant=False)
        for index, (tensor, before) in enumerate(zip(tensors, versions, strict=True)):
            if version_of(tensor) != before:
                raise CaptureError(
                    f"module {name!r} writes to its input {index} in place, so that it cannot be "
                    "computed again; use the operation that returns a new tensor, or leave the "
                    "module out of options.recompute"
                )
        return result

    return recompute

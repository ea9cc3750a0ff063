"""What wrapping does to the user's module: a shallow copy is executed, the original is marked."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from poptorch._errors import Error

M = TypeVar("M")
_UNINITIALIZED = (UninitializedBuffer, UninitializedParameter)


# Modules that are unwrapped for a while, and who trains them.
_set_aside: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Owner]] = weakref.WeakKeyDictionary()


class Owner(Protocol):
    """What a wrapped module asks of the executor that trains it."""

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Return whether weights had to be copied."""
        ...

    def destroy(self) -> None:
        """Drop the program and un-wrap the module."""


class _WrappedModel:
    """Mixed into the class of a module while a training executor uses it."""

    __slots__ = ()
    _poptorch_executor: weakref.ref[Owner]
    _poptorch_class: type[nn.Module]

    @property
    def _poplar_executor(self) -> Owner | None:
        """The executor that trains the module; None once it is gone."""
        return self._poptorch_executor()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Return False: weights live in the module and are never stale."""
        executor = self._poptorch_executor()
        return executor is not None and executor.copyWeightsToHostIfNeeded()

    def destroy(self) -> None:
        """Drop the program of the executor, which un-wraps the module."""
        executor = self._poptorch_executor()
        if executor is not None:
            executor.destroy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Copies and pickles have the original class: the program stays with this object. Protocol
        # 1, because the later ones insist on the class of the object that is pickled.
        return shallow_copy(self).__reduce_ex__(1)


def shallow_copy(module: M) -> M:
    """Return a module of the original class that shares sub-modules, parameters and buffers.

    Plain attributes of the top level, its `training` flag included, are from now on its own.
    """
    twin: Any = object.__new__(original_class(module))
    twin.__dict__.update(module.__dict__)
    return twin


def original_class(module: Any) -> type:
    """Return the class that the user gave the module."""
    return module._poptorch_class if isinstance(module, _WrappedModel) else type(module)


def wrap(module: nn.Module, executor: Owner) -> None:
    """Mark `module` as being trained by `executor`.

    Raises:
        RuntimeError: if a living executor trains it already.
        Error: if a buffer is not a plain tensor.
    """
    if isinstance(module, _WrappedModel):
        if module._poptorch_executor() is not None:
            raise RuntimeError(
                f"This {original_class(module).__name__} has already been wrapped in "
                "poptorch.trainingModel; call destroy() on it first to wrap it again"
            )
        unwrap(module)
    for name, buffer in module.named_buffers():
        plain = type(buffer) in (torch.Tensor, nn.Parameter)
        if not plain and not isinstance(buffer, _UNINITIALIZED):
            raise Error(
                f"Buffer {name!r} is a {type(buffer).__name__}; buffers must be plain torch.Tensor"
            )
    original = type(module)
    name = f"Poptorch{original.__name__}"
    attributes = {
        "__module__": original.__module__,
        "__qualname__": name,
        "_poptorch_executor": weakref.ref(executor),
        "_poptorch_class": original,
        "__reduce_ex__": _WrappedModel.__reduce_ex__,
    }
    # The original comes first: Python only swaps classes whose primary base is the old class.
    metaclass: Any = type(original)
    module.__class__ = metaclass(name, (original, _WrappedModel), attributes)


def unwrap(module: nn.Module) -> None:
    """Give the module its own class back, for good."""
    _set_aside.pop(module, None)
    if isinstance(module, _WrappedModel):
        module.__class__ = module._poptorch_class  # type: ignore[assignment]


def set_aside(module: nn.Module) -> None:
    """Unwrap a module for a while; `put_back` wraps it again, for the same executor."""
    if isinstance(module, _WrappedModel):
        executor = module._poptorch_executor
        unwrap(module)
        _set_aside[module] = executor


def put_back(module: nn.Module) -> None:
    """Wrap a module again that was set aside, if its executor still lives."""
    reference = _set_aside.pop(module, None)
    executor = None if reference is None else reference()
    if executor is not None and not isinstance(module, _WrappedModel):
        wrap(module, executor)


@contextlib.contextmanager
def after_forward(module: nn.Module, callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` whenever `module` itself has run forward.

    A hook on the module would be part of what the executable cache compares; a global one is not.
    """

    def hook(ran: nn.Module, args: Any, output: Any) -> None:
        if ran is module:
            callback()

    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()

"""Functions that run before and after every compilation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch.utils.hooks import RemovableHandle

from torchkiln import runtime

Hook = Callable[[], None]
_before: OrderedDict[int, Hook] = OrderedDict()
_after: OrderedDict[int, Hook] = OrderedDict()


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Call `hook` before each compilation; `remove()` of the result takes it off."""
    return _register(_before, hook)


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Call `hook` after each compilation, also a failed one."""
    return _register(_after, hook)


def _register(hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"A compile hook must be callable, got {hook!r}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _run(hooks: OrderedDict[int, Hook]) -> None:
    for hook in list(hooks.values()):
        hook()


# One pair for the whole process: programs compile from several places, hooks come and go.
runtime.add_compile_hook(before=lambda: _run(_before), after=lambda: _run(_after))

"""Replacing functions and methods of PyG by static ones while a program records its forward.

Functions are replaced through their code object: users hold them by name (`from torch_geometric.nn
import knn_graph`), and no list of modules would find every such name. Methods are replaced in their
class. A thread that is not recording gets the original, whatever another thread does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_lock = threading.RLock()
_recording = threading.local()
_undo: list[Callable[[], None]] = []
_users = 0

# What the code of a replaced function looks up when it is called.
_routes: dict[int, Callable[..., Any]] = {}
_numbers = itertools.count()
_PLACEHOLDER = "<route>"


@dataclass(frozen=True, slots=True)
class Substitute:
    """A static form of `owner.name`; `owner` is a module or a class.

    `static` takes the same arguments. Where `wraps`, it takes the original first: for replacements
    that only change the arguments.
    """

    owner: Any
    name: str
    static: Callable[..., Any]
    wraps: bool = False


def is_recording() -> bool:
    """True in the thread that records a forward."""
    return bool(getattr(_recording, "depth", 0))


@contextlib.contextmanager
def substituted(substitutes: Sequence[Substitute]) -> Iterator[None]:
    """Let this thread see the substitutes. Everything is put back at the end.

    Uses may be nested, and overlap between threads: the first one's substitutes count for all.
    """
    global _users
    with _lock:
        if _users == 0:
            _install(substitutes)
        _users += 1
    _recording.depth = getattr(_recording, "depth", 0) + 1
    try:
        yield
    finally:
        _recording.depth -= 1
        with _lock:
            _users -= 1
            if _users == 0:
                _restore()


def _install(substitutes: Sequence[Substitute]) -> None:
    try:
        for substitute in substitutes:
            original = vars(substitute.owner)[substitute.name]
            if isinstance(substitute.owner, type):
                _undo.append(_replace_method(substitute, original))
            else:
                # PyG's checks of sizes are wrapped around some functions: they stay.
                inner = inspect.unwrap(original)
                _undo.append(replace_function(inner, _chooser(substitute, _copy(inner))))
    except BaseException:
        _restore()
        raise


def _replace_method(substitute: Substitute, original: Any) -> Callable[[], None]:
    setattr(substitute.owner, substitute.name, _chooser(substitute, original))
    return functools.partial(setattr, substitute.owner, substitute.name, original)


def _restore() -> None:
    while _undo:
        _undo.pop()()


def _chooser(substitute: Substitute, original: Callable[..., Any]) -> Callable[..., Any]:
    static = substitute.static
    if substitute.wraps:
        static = functools.partial(static, original)

    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (static if is_recording() else original)(*args, **kwargs)

    return choose


def replace_function(
    function: types.FunctionType, target: Callable[..., Any]
) -> Callable[[], None]:
    """Let every call of `function`, by whatever name, call `target`; returns how to undo it."""
    code = function.__code__
    assert not code.co_freevars, f"{function.__qualname__} has a closure and cannot be replaced"
    route = next(_numbers)
    _routes[route] = target
    template = _routed.__code__
    constants = tuple(route if value == _PLACEHOLDER else value for value in template.co_consts)
    function.__code__ = template.replace(co_consts=constants, co_name=function.__name__)

    def undo() -> None:
        function.__code__ = code
        del _routes[route]

    return undo


def _routed(*args: Any, **kwargs: Any) -> Any:
    # The code of a replaced function: it runs with that function's globals, hence the import.
    from torchkiln.graphs.layers._substitution import follow_route

    return follow_route("<route>", args, kwargs)


def follow_route(route: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what replaces a function; this is what the replaced code object runs."""
    return _routes[route](*args, **kwargs)


def _copy(function: types.FunctionType) -> types.FunctionType:
    """Return the function as it is now, under another identity."""
    copied = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__module__ = function.__module__
    return copied

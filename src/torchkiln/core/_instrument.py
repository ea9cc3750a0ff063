"""Timing every call of some methods of one object."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torchkiln.core._errors import ArgumentError
from torchkiln.core._trace import span

T = TypeVar("T")

# Sets the type of an object, whatever its class says about attributes.
_set_type: Callable[[Any, type], None] = vars(object)["__class__"].__set__


def instrument(obj: T, channel: str, *methods: str) -> T:
    """Make each call of the named methods of `obj` a span of the channel; return `obj`.

    Python looks up special methods (`obj[i]` calls `__getitem__`) on the type, so the object gets a
    type of its own: a subclass of its class, which everything else takes for the class itself.
    Other objects of the class, copies and unpickled ones stay as they were. For a class as `obj`,
    the class itself is changed, and so are all its objects.

    Raises:
        AttributeError: There is no such method.
        ArgumentError: A special method of an object whose type Python does not let us exchange.
    """
    for name in methods:
        getattr(obj, name)  # names what is not there before anything is changed
    on_type = [
        name for name in methods if not isinstance(obj, type) and _is_found_on_type(obj, name)
    ]
    for name in methods:
        if name not in on_type:
            _replace_attribute(obj, channel, name)
    if on_type:
        _replace_type(obj, channel, on_type)
    return obj


def _is_found_on_type(obj: Any, name: str) -> bool:
    in_object = name in getattr(obj, "__dict__", ()) and not _is_special(name)
    return not in_object and inspect.getattr_static(type(obj), name, None) is not None


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _replace_attribute(obj: Any, channel: str, name: str) -> None:
    if not isinstance(obj, type):
        setattr(obj, name, _TracedCall(getattr(obj, name), channel, name))
        return
    raw = inspect.getattr_static(obj, name)
    if isinstance(raw, staticmethod | classmethod):
        setattr(obj, name, type(raw)(_trace(raw.__func__, channel, name)))
    else:
        setattr(obj, name, _trace(raw, channel, name))


def _trace(function: Callable[..., Any], channel: str, label: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        with span(channel, label):
            return function(*args, **kwargs)

    return traced


class _TracedCall:
    """A function that is timed; an object, so that it can be pickled with what holds it."""

    def __init__(self, function: Callable[..., Any], channel: str, label: str) -> None:
        functools.update_wrapper(self, function)
        self._call = (function, channel, label)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, channel, label = self._call
        with span(channel, label):
            return function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._call


def _replace_type(obj: Any, channel: str, methods: list[str]) -> None:
    real_type: Any = type(obj)
    shown = obj.__class__
    space: dict[str, Any] = {
        "__slots__": (),  # the same memory as the class has
        "__module__": real_type.__module__,
        "__qualname__": real_type.__qualname__,
        "__doc__": real_type.__doc__,
        # What dataclasses compare by, and what pickle checks.
        "__class__": property(lambda self: shown),
    }
    try:
        own_type: Any = type(real_type)(real_type.__name__, (real_type,), space)
        _set_type(obj, own_type)
    except TypeError as error:
        for name in methods:
            if _is_special(name):
                raise ArgumentError(
                    f"{name} of a {real_type.__name__} cannot be timed, because Python looks it up "
                    f"on the type, which cannot be exchanged ({error}); wrap the object in a class "
                    "of your own"
                ) from error
        for name in methods:
            _replace_attribute(obj, channel, name)
        return
    type.__setattr__(own_type, "__reduce_ex__", _reduce_as(shown, own_type))
    for name in methods:
        type.__setattr__(own_type, name, _traced_method(own_type, channel, name))


def _traced_method(own_type: Any, channel: str, name: str) -> Callable[..., Any]:
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        with span(channel, name):
            return getattr(super(own_type, self), name)(*args, **kwargs)

    # Programs read the signature of forward.
    original = inspect.getattr_static(own_type, name)
    with contextlib.suppress(AttributeError):
        functools.update_wrapper(traced, getattr(original, "__func__", original))
    return traced


def _reduce_as(shown: type, own_type: Any) -> Callable[[Any, Any], Any]:
    """Return a `__reduce_ex__` that says `shown` where `own_type` would appear."""

    def reduce(self: Any, protocol: Any) -> Any:
        reduced = super(own_type, self).__reduce_ex__(protocol)
        if not isinstance(reduced, tuple):
            return reduced
        function, arguments, *rest = reduced
        arguments = tuple(shown if part is own_type else part for part in arguments)
        return (shown if function is own_type else function, arguments, *rest)

    return reduce

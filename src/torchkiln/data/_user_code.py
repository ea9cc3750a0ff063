"""The one place where a loader calls code of the user: datasets, collation, transforms."""

from __future__ import annotations

import functools
import operator
import traceback
from collections.abc import Callable, Iterator
from typing import Any, final

import torch.utils.data

from torchkiln.core import is_traced, span
from torchkiln.data._errors import DatasetError


def call_user_code(function: Callable[..., Any], *args: Any) -> Any:
    """Return `function(*args)`, where StopIteration is an error.

    Every loop takes StopIteration for the end of the data. One that escapes from a dataset's
    `__getitem__` would make the pass shorter, and nobody would notice.

    Raises:
        DatasetError: The function raised StopIteration.
    """
    try:
        return function(*args)
    except StopIteration as error:
        raise DatasetError(describe_stop(_find_origin(error, function))) from error


def describe_stop(origin: str) -> str:
    return (
        f"{origin} raised StopIteration, which would end the pass over the data early and without "
        "a word; catch it there (a `next()` without a default raises it), or raise another error"
    )


def _find_origin(error: StopIteration, function: Callable[..., Any]) -> str:
    """Return the function that raised, with its place: `function` may be a layer of our own."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if len(frames) == 1:  # raised by native code
        name: str = getattr(function, "__qualname__", type(function).__qualname__)
        return name
    frame, line = frames[-1]
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})"


def read_elements(source: Any) -> Iterator[Any]:
    """Return an iterator over an iterable or a map-style dataset.

    Python would iterate over what has only `__getitem__` until that raises IndexError, or
    StopIteration, be it by mistake and far from the end.
    """
    if hasattr(source, "__iter__") or not hasattr(source, "__len__"):
        return iter(source)
    return map(UserDataset(source).__getitem__, range(len(source)))


@final
class UserCode:
    """A function of the user whose StopIteration is an error; picklable if the function is.

    Args:
        function: Makes a batch, or a part of one.
        label: What a trace calls that.
    """

    def __init__(self, function: Callable[..., Any], label: str) -> None:
        self._function = function
        self._label = label

    def __call__(self, *args: Any) -> Any:
        with span("data", self._label):
            return call_user_code(self._function, *args)


@final
class UserDataset(torch.utils.data.Dataset[Any]):
    """A map-style dataset of the user, as torch's loaders read it."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        return call_user_code(operator.getitem, self._dataset, index)

    @property
    def __getitems__(self) -> Callable[[list[Any]], Any] | None:
        """What torch reads a whole batch with, if the dataset has it."""
        read_many = getattr(self._dataset, "__getitems__", None)
        if is_traced():
            # For the whole batch: a mark for every sample would take longer than many samples do.
            return functools.partial(_read_traced, read_many or self._read_one_by_one)
        return None if read_many is None else functools.partial(call_user_code, read_many)

    def _read_one_by_one(self, indices: list[Any]) -> list[Any]:
        return [operator.getitem(self._dataset, index) for index in indices]


def _read_traced(read_many: Callable[[list[Any]], Any], indices: list[Any]) -> Any:
    with span("data", "dataset access"):
        return call_user_code(read_many, indices)

"""Timing methods of one object, and of that object alone."""

from __future__ import annotations

import copy
import inspect
import pickle
import types
from dataclasses import dataclass

import pytest

from torchkiln.core import ArgumentError, Span, add_listener, instrument


@pytest.fixture
def labels():
    found: list[str] = []

    def note(span: Span) -> None:
        assert span.channel == "mine"
        found.append(span.label)

    remove = add_listener(note)
    yield found
    remove()


class Numbers:
    def __init__(self, count: int = 3) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        return index * self.count

    def __len__(self) -> int:
        return self.count

    def total(self, *, scale: int = 1) -> int:
        return scale * sum(self[index] for index in range(len(self)))

    @classmethod
    def make(cls, count: int) -> Numbers:
        return cls(count)


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 5

    def __call__(self) -> int:
        return self.value


@dataclass(frozen=True)
class Point:
    x: int

    def __neg__(self) -> Point:
        return Point(-self.x)


def test_special_methods_are_timed_where_python_calls_them(labels):
    numbers = instrument(Numbers(), "mine", "__getitem__", "__len__")
    assert (numbers[2], len(numbers)) == (6, 3)
    assert labels == ["__getitem__", "__len__"]
    assert instrument(Slotted(), "mine", "__call__")() == 5
    assert -instrument(Point(2), "mine", "__neg__") == Point(-2)


def test_methods_are_timed_with_what_they_call(labels):
    numbers = instrument(Numbers(2), "mine", "total", "__getitem__", "make")
    assert numbers.total(scale=10) == 20
    assert labels == ["__getitem__", "__getitem__", "total"]
    assert numbers.make(4).count == 4
    assert str(inspect.signature(numbers.total)) == "(*, scale: 'int' = 1) -> 'int'"


def test_other_objects_of_the_class_are_not_touched(labels):
    other, numbers = Numbers(), Numbers()
    assert instrument(numbers, "mine", "__getitem__") is numbers
    assert (other[1], Numbers()[1]) == (3, 3)
    assert labels == []


def test_the_object_stays_what_it_was():
    numbers = instrument(Numbers(), "mine", "__getitem__", "total")
    assert isinstance(numbers, Numbers)
    assert numbers.__class__ is Numbers
    assert type(numbers).__qualname__ == "Numbers"
    assert vars(numbers) == {"count": 3}
    assert instrument(Point(1), "mine", "__neg__") == Point(1)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_could_be_pickled_still_can_be(protocol, labels):
    numbers = instrument(Numbers(4), "mine", "__getitem__")
    instrument(numbers, "mine", "__len__")
    again = pickle.loads(pickle.dumps(numbers, protocol))
    assert type(again) is Numbers
    assert (again.count, again[1], len(copy.deepcopy(numbers))) == (4, 4, 4)
    assert labels == []


def test_an_object_can_be_instrumented_twice(labels):
    numbers = instrument(Numbers(), "mine", "__getitem__")
    instrument(numbers, "mine", "__len__")
    assert numbers[len(numbers)] == 9
    assert labels == ["__len__", "__getitem__"]


def test_attributes_of_the_object_itself_and_of_modules(labels):
    numbers = Numbers()
    numbers.own = len
    module = types.ModuleType("module")
    module.work = abs
    instrument(numbers, "mine", "own")
    instrument(module, "mine", "work")
    assert (numbers.own("ab"), module.work(-1)) == (2, 1)
    assert labels == ["own", "work"]
    assert pickle.loads(pickle.dumps(numbers)).own("abc") == 3


def test_a_class_is_instrumented_for_all_its_objects(labels):
    class Own(Numbers):
        pass

    instrument(Own, "mine", "__getitem__", "make")
    assert Own().make(2)[1] == 2
    assert labels == ["make", "__getitem__"]
    assert Numbers()[1] == 3
    assert labels == ["make", "__getitem__"]


def test_what_cannot_be_timed_is_an_error():
    with pytest.raises(ArgumentError, match="__getitem__ of a list cannot be timed"):
        instrument([1], "mine", "__getitem__")
    numbers = Numbers()
    with pytest.raises(AttributeError, match="missing"):
        instrument(numbers, "mine", "__getitem__", "missing")
    assert type(numbers) is Numbers

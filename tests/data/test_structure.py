from __future__ import annotations

import collections
from typing import NamedTuple

import pytest
import torch

from torchkiln.data import (
    concatenate,
    container_of,
    flatten,
    map_tensors,
    rebatch,
    rebuild,
    register_container,
)
from torchkiln.data._regroup import join_groups
from torchkiln.data._structure import paths


class Point(NamedTuple):
    x: torch.Tensor
    label: str


class Box:
    def __init__(self, content: torch.Tensor) -> None:
        self.content = content


class SmallBox(Box):
    pass


class BoxContainer:
    def tensors(self, value):
        yield value.content

    def rebuild(self, original, tensors):
        return type(original)(next(tensors))


@pytest.fixture
def boxes():
    container = BoxContainer()
    register_container(Box, container)
    yield container
    register_container(Box, None)


def test_tensors_come_out_in_order_with_their_paths():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    tensors, node = flatten({"first": (a, "text"), "rest": [b, {"deep": c}]}, "batch")
    assert [t is u for t, u in zip(tensors, (a, b, c), strict=True)] == [True] * 3
    assert paths(node) == ["batch['first'][0]", "batch['rest'][0]", "batch['rest'][1]['deep']"]


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2),
        (torch.ones(2), 3),
        [torch.ones(2), [torch.zeros(1)]],
        {"a": torch.ones(1), "b": None},
        Point(torch.ones(2), "oxygen"),
        collections.OrderedDict(b=torch.ones(1), a=torch.ones(2)),
        (),
        "constant",
        torch.Size([2, 3]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rebuilding_gives_the_same_type_and_content(value):
    tensors, node = flatten(value)
    again = rebuild(node, tensors)
    assert type(again) is type(value)
    assert str(again) == str(value)


def test_a_subclass_of_dict_keeps_what_only_a_copy_has():
    value = collections.defaultdict(list, x=torch.ones(1))
    again = map_tensors(lambda tensor: tensor + 1, value)
    assert again["x"].item() == 2
    assert again["missing"] == []
    assert value["x"].item() == 1


def test_registered_objects_are_opened(boxes):
    value = [Box(torch.ones(2)), torch.zeros(1)]
    doubled = map_tensors(lambda tensor: tensor * 2, value)
    assert type(doubled[0]) is Box
    assert doubled[0].content.tolist() == [2, 2]
    assert value[0].content.tolist() == [1, 1]
    assert paths(flatten(value, "v")[1]) == ["v[0].tensor[0]", "v[1]"]


def test_the_exact_type_comes_before_a_base(boxes):
    assert container_of(SmallBox(torch.ones(1))) is boxes
    special = BoxContainer()
    register_container(SmallBox, special)
    try:
        assert container_of(SmallBox(torch.ones(1))) is special
        assert container_of(Box(torch.ones(1))) is boxes
    finally:
        register_container(SmallBox, None)


def test_objects_are_constants_once_their_type_is_taken_back(boxes):
    register_container(Box, None)
    assert flatten(Box(torch.ones(1)))[0] == []


def test_concatenation_joins_tensor_by_tensor(boxes):
    def part(i: int):
        return {"x": torch.full((2, 3), float(i)), "box": Box(torch.tensor([i])), "name": i}

    joined = concatenate([part(1), part(2)])
    assert joined["x"].shape == (4, 3)
    assert joined["box"].content.tolist() == [1, 2]
    assert joined["name"] == 1


def test_concatenation_refuses_different_structures():
    with pytest.raises(ValueError, match="zip"):
        concatenate([[torch.ones(1)], [torch.ones(1), torch.ones(1)]])


@pytest.mark.parametrize(
    ("drop_last", "expected"), [(True, [[0, 1], [2, 3]]), (False, [[0, 1], [2, 3], [4]])]
)
def test_groups_of_batches(drop_last, expected):
    batches = (torch.tensor([i]) for i in range(5))
    assert [b.tolist() for b in join_groups(batches, 2, drop_last=drop_last)] == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12, 13])
@pytest.mark.parametrize("lengths", [(12,), (1,) * 12, (5, 7), (3, 0, 4, 5), (2, 10)])
def test_rebatching_keeps_every_element_in_order(size, lengths):
    numbers = torch.arange(12)
    pieces = [{"n": n, "twice": 2 * n} for n in torch.split(numbers, list(lengths))]
    batches = list(rebatch(pieces, size, drop_last=False))
    assert torch.cat([batch["n"] for batch in batches]).tolist() == numbers.tolist()
    assert all(len(batch["n"]) == size for batch in batches[:-1])
    assert all(torch.equal(batch["twice"], 2 * batch["n"]) for batch in batches)
    whole = list(rebatch(pieces, size, drop_last=True))
    assert len(whole) == 12 // size


def test_a_batch_of_the_right_size_is_not_copied():
    batch = torch.arange(4)
    assert next(rebatch([batch], 4, drop_last=True)) is batch

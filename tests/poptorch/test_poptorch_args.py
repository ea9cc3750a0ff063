from dataclasses import dataclass

import pytest
import torch
from torch import nn

import poptorch


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor
    label: str = ""


class Triple(Pair):
    pass


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.left
        yield struct.right

    def reconstruct(self, original_structure, tensor_iterator):
        return type(original_structure)(
            next(tensor_iterator), next(tensor_iterator), original_structure.label
        )


@pytest.fixture(autouse=True)
def _registered():
    poptorch.registerCustomArgParser(Pair, PairParser())
    yield
    poptorch.registerCustomArgParser(Pair, None)


class Swap(nn.Module):
    def forward(self, pair):
        return type(pair)(pair.right * 2, pair.left, pair.label)


@pytest.mark.parametrize("kind", [Pair, Triple])
def test_custom_types_go_in_and_out(kind):
    model = poptorch.inferenceModel(Swap())
    result = model(kind(torch.ones(2), torch.zeros(2), "name"))
    assert type(result) is kind
    assert (result.left.tolist(), result.right.tolist(), result.label) == ([0, 0], [1, 1], "name")


def test_batches_are_cut_inside_custom_types():
    model = poptorch.inferenceModel(Swap(), poptorch.Options().deviceIterations(2))
    assert model(Pair(torch.ones(4), torch.arange(4.0))).left.tolist() == [0, 2, 4, 6]
    with pytest.raises(poptorch.Error, match=r"expected torch\.Size"):
        model(Pair(torch.ones(4), torch.arange(2.0)))


def test_loaders_join_custom_types():
    pairs = [Pair(torch.full((1,), float(i)), torch.full((1,), -float(i))) for i in range(6)]
    loader = poptorch.DataLoader(
        poptorch.Options().deviceIterations(3),
        pairs,
        batch_sampler=torch.utils.data.BatchSampler(range(6), 1, drop_last=False),
        collate_fn=lambda batch: batch[0],
    )
    assert [batch.left.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


def test_only_parsers_can_be_registered():
    with pytest.raises(poptorch.Error, match="ICustomArgParser"):
        poptorch.registerCustomArgParser(Pair, PairParser)
    with pytest.raises(TypeError):
        poptorch.ICustomArgParser()


def test_a_removed_type_is_opaque_again():
    poptorch.registerCustomArgParser(Pair, None)
    model = poptorch.inferenceModel(Swap())
    with pytest.raises(poptorch.Error, match=r"holds tensors.*poptorch.registerCustomArgParser"):
        model(Pair(torch.ones(1), torch.ones(1)))

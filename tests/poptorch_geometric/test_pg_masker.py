import pytest
import torch

from poptorch_geometric.masker import LayerMasker, Masker, NoMasker, PreLayerMasker

KINDS = ("node_masker", "edge_masker", "graph_masker")


class Zero(Masker):
    """Multiplies nodes by the mask, edges by twice, graphs by three times the mask."""

    def node_masker(self, entries, mask=None):
        return self._apply(entries, mask, 1)

    def edge_masker(self, entries, mask=None):
        return self._apply(entries, mask, 2)

    def graph_masker(self, entries, mask=None):
        return self._apply(entries, mask, 3)

    def _apply(self, entries, mask, factor):
        if isinstance(entries, tuple):
            return tuple(self._apply(entry, mask, factor) for entry in entries)
        return entries if mask is None else entries * mask * factor


@pytest.mark.parametrize("kind", KINDS)
def test_no_masker_returns_the_same_object(kind):
    entries = (torch.ones(2), torch.ones(2))
    assert getattr(NoMasker(), kind)(entries, torch.zeros(2)) is entries


@pytest.mark.parametrize(("kind", "factor"), list(zip(KINDS, (1, 2, 3), strict=True)))
def test_arguments_are_masked_before_the_layer(kind, factor):
    mask = torch.tensor([1.0, 0.0])
    one = getattr(PreLayerMasker(Zero()), kind)(lambda x: x + 1)
    assert one(torch.ones(2), mask=mask).tolist() == [factor + 1, 1]
    assert one(torch.ones(2)).tolist() == [2, 2]
    two = getattr(PreLayerMasker(Zero()), kind)(lambda x, y: x + 10 * y)
    assert two(torch.ones(2), torch.ones(2), mask=mask).tolist() == [11 * factor, 0]


@pytest.mark.parametrize("kind", [Masker, LayerMasker])
def test_interfaces_cannot_be_made(kind):
    with pytest.raises(TypeError, match="abstract"):
        kind() if kind is Masker else kind(NoMasker())


def test_a_layer_may_take_one_tuple():
    pair = (torch.ones(2), torch.zeros(2))
    for kind in ("node_masker", "edge_masker", "graph_masker"):
        layer = getattr(PreLayerMasker(NoMasker()), kind)(lambda entries: entries)
        assert layer(pair, mask=torch.tensor([True, False])) is pair

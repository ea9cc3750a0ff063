"""Packs of a fixed number of graphs."""

from __future__ import annotations

import numpy as np
import pytest

from torchkiln.core import BatchTooLarge
from torchkiln.packing._padded import plan_padded
from torchkiln.packing._sizes import SizeTable

TABLE = SizeTable.read({"nodes": [3, 4, 50, 2, 5]})
SLOTS = {"nodes": 11, "graphs": 3}


def plan(slots=SLOTS, **arguments):
    defaults = {"batch_size": 2, "seed": None, "epoch": 0, "oversize": "skip"}
    return plan_padded(TABLE, slots, **{**defaults, **arguments})


def test_packs_hold_a_fixed_number_and_the_last_one_the_rest():
    found = plan({"nodes": 60, "graphs": 3}, oversize="error")
    assert [pack.tolist() for pack in found] == [[0, 1], [2, 3], [4]]
    assert found.used["nodes"].tolist() == [7, 52, 5]


def test_what_is_too_large_is_skipped_or_cut():
    skipping, trimming = plan(), plan({"nodes": 16, "graphs": 3}, batch_size=1, oversize="trim")
    assert [pack.tolist() for pack in skipping] == [[0, 1], [3, 4]]
    assert skipping.skipped.tolist() == [2]
    assert trimming.oversize.tolist() == [2]
    assert trimming.used["nodes"].tolist() == [3, 4, 15, 2, 5]


def test_each_epoch_has_another_order_of_the_same_graphs():
    epochs = [plan(seed=3, epoch=epoch).indices for epoch in range(4)]
    assert all(sorted(order) == [0, 1, 3, 4] for order in epochs)
    assert len({tuple(order) for order in epochs}) > 1
    assert np.array_equal(plan(seed=3, epoch=2).indices, epochs[2])


def test_a_graph_or_a_pack_that_is_too_large_is_an_error():
    with pytest.raises(BatchTooLarge, match="graph 2 has 50 nodes, but a pack holds 10 nodes"):
        plan(oversize="error")
    with pytest.raises(BatchTooLarge, match="4 graphs can have 14 nodes, but a batch holds 11"):
        plan({"nodes": 11, "graphs": 5}, batch_size=4)


def test_a_plan_without_any_graph_has_no_packs():
    assert len(plan({"nodes": 2, "graphs": 3})) == 0

"""How full batches of real molecules are."""

import pytest

from torchkiln.core import StoreError
from torchkiln.packing import choose_slots, pack

GOALS = [(512, 0.985, 0.98), (2_000, 0.993, 0.993)]


@pytest.fixture(scope="module", params=[6.0, 10.0], ids=["6A", "10A"])
def sizes(request):
    from torchkiln.datasets import load_sizes

    try:
        return load_sizes("qm9", cutoff_angstrom=request.param)
    except StoreError as error:
        pytest.skip(f"QM9 is not here: {error}")


@pytest.mark.parametrize(("nodes", "least_nodes", "least_edges"), GOALS)
def test_qm9_fills_both_axes_in_every_epoch(sizes, nodes, least_nodes, least_edges):
    slots = choose_slots(sizes, nodes=nodes)
    assert slots["nodes"] == nodes
    for epoch in range(2):
        plan = pack(sizes, slots, seed=0, epoch=epoch)
        assert plan.num_graphs == 130_831
        assert plan.efficiency["nodes"] >= least_nodes
        assert plan.efficiency["edges"] >= least_edges

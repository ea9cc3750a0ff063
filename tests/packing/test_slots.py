import numpy as np
import pytest
from size_strategies import molecules

from torchkiln.core import BatchTooLarge, OptionsError
from torchkiln.packing import choose_slots, pack


def test_a_node_target_is_kept_and_edges_follow():
    sizes = molecules(20_000)
    slots = choose_slots(sizes, nodes=512)
    assert slots["nodes"] == 512
    per_node = sizes["edges"].sum() / sizes["nodes"].sum()
    assert slots["edges"] == pytest.approx(512 * per_node, rel=0.02)
    assert list(slots) == ["nodes", "edges", "graphs"]


def test_a_graph_target_is_the_average_of_packs():
    sizes = molecules(20_000)
    plan = pack(sizes, choose_slots(sizes, graphs=32), seed=0)
    assert plan.num_graphs / len(plan) == pytest.approx(32, rel=0.02)


def test_equal_graphs_get_slots_that_they_fill():
    sizes = {"nodes": np.full(1000, 100), "edges": np.full(1000, 250)}
    slots = choose_slots(sizes, nodes=540)
    assert slots == {"nodes": 501, "edges": 1251, "graphs": 6}


def test_graph_slots_hardly_ever_close_a_pack():
    sizes = molecules(20_000)
    slots = choose_slots(sizes, nodes=512)
    limited = pack(sizes, slots, seed=0)
    free = pack(sizes, {**slots, "graphs": 1000}, seed=0)
    assert len(limited) <= len(free) * 1.002
    assert limited.efficiency["graphs"] > 0.85


def test_decided_slots_are_kept():
    sizes = molecules(5_000)
    slots = choose_slots(sizes, nodes=512, slots={"edges": 9_999})
    assert slots["edges"] == 9_999
    assert choose_slots(sizes, slots={"nodes": 300})["nodes"] == 300
    assert choose_slots(sizes, slots={"graphs": 17})["graphs"] == 17


def test_further_axes_are_chosen_too():
    sizes = molecules(5_000)
    sizes["pairs"] = sizes["edges"] // 2
    plan = pack(sizes, choose_slots(sizes, nodes=512), seed=0)
    assert min(plan.efficiency[axis] for axis in ("nodes", "edges", "pairs")) > 0.97


def test_node_types_share_the_target():
    sizes = molecules(5_000)
    sizes = {"nodes:atom": sizes["nodes"], "nodes:ring": np.full(5_000, 2), **sizes}
    del sizes["nodes"]
    slots = choose_slots(sizes, nodes=400)
    assert slots["nodes:atom"] + slots["nodes:ring"] == pytest.approx(400, abs=2)


def test_sizes_can_be_rounded():
    slots = choose_slots(molecules(5_000), nodes=500, multiple_of=8)
    assert slots["nodes"] % 8 == slots["edges"] % 8 == 0


def test_no_edges_at_all():
    sizes = {"nodes": np.full(100, 4), "edges": np.zeros(100, int)}
    slots = choose_slots(sizes, nodes=41)
    assert slots == {"nodes": 41, "edges": 1, "graphs": 11}


def test_the_same_sizes_get_the_same_slots():
    assert choose_slots(molecules(30_000), nodes=512) == choose_slots(molecules(30_000), nodes=512)


def test_the_largest_graph_fits_and_the_warning_says_what_that_costs():
    sizes = molecules(5_000)
    sizes["nodes"][17] = 900
    sizes["edges"][17] = 16_000
    with pytest.warns(UserWarning, match=r"1 of 5,000 graphs.*nodes 512 -> .*split_giants"):
        slots = choose_slots(sizes, nodes=512)
    plan = pack(sizes, slots, seed=0)
    assert min(plan.efficiency["nodes"], plan.efficiency["edges"]) > 0.95


@pytest.mark.parametrize(
    ("sizes", "settings", "match"),
    [
        (molecules(10), {}, "say how large a pack should be"),
        (molecules(10), {"nodes": 99, "graphs": 3}, "give one of them"),
        (molecules(10), {"nodes": 1}, "nodes=1 leaves no node beside the reserve of 1"),
        (molecules(10), {"graphs": 0}, "at least 1, got 0"),
        (molecules(10), {"nodes": 99, "multiple_of": 0}, "multiple_of must be at least 1"),
        (molecules(10), {"nodes": 99, "slots": {"edge": 5}}, "'edge', which sizes do not have"),
        (molecules(0), {"nodes": 99}, "sizes are empty"),
        ({"edges": [3, 4]}, {"nodes": 99}, "sizes count no nodes"),
    ],
)
def test_unclear_targets_are_refused(sizes, settings, match):
    with pytest.raises(OptionsError, match=match):
        choose_slots(sizes, **settings)


def test_decided_slots_that_hold_no_graph_are_the_ones_blamed():
    sizes = {"nodes": [3, 5, 7], "edges": [4, 9, 8]}
    slots = choose_slots(sizes, nodes=16, slots={"edges": 2})
    with pytest.raises(BatchTooLarge, match="3 nodes and 4 edges, but a pack holds 1 edges"):
        pack(sizes, slots)

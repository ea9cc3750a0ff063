import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from size_strategies import molecules, sizes_and_slots

from torchkiln.core import BatchTooLarge, OptionsError
from torchkiln.packing import ALGORITHMS, choose_slots, pack

MOLECULE_SLOTS = {"nodes": 512, "edges": 8650, "graphs": 40}

# The first example may have to compile a kernel.
properties = settings(deadline=None, max_examples=60)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@properties
@given(case=sizes_and_slots(), seed=st.none() | st.integers(0, 3))
def test_every_graph_is_packed_once_and_no_limit_is_exceeded(algorithm, case, seed):
    sizes, slots, reserve = case
    plan = pack(sizes, slots, algorithm=algorithm, seed=seed, reserve=reserve)
    count = len(sizes["nodes"])
    assert sorted(plan.indices.tolist()) == list(range(count))
    for number, members in enumerate(plan):
        assert 1 <= len(members) <= slots["graphs"] - reserve
        for axis, column in sizes.items():
            assert column[members].sum() <= slots[axis] - reserve
            assert column[members].sum() == plan.used[axis][number]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@properties
@given(case=sizes_and_slots(max_graphs=30), seed=st.none() | st.integers(0, 3))
def test_the_same_arguments_give_the_same_plan(algorithm, case, seed):
    sizes, slots, reserve = case
    settings = {"algorithm": algorithm, "seed": seed, "epoch": 2, "reserve": reserve}
    assert pack(sizes, slots, **settings) == pack(sizes, slots, **settings)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@properties
@given(case=sizes_and_slots(), oversize=st.sampled_from(["skip", "trim"]))
def test_giants_anywhere_lose_no_other_graph(algorithm, case, oversize):
    sizes, slots, reserve = case
    count = len(sizes["nodes"])
    giant = count // 2
    sizes = {axis: np.insert(column, giant, 10**6) for axis, column in sizes.items()}
    if oversize == "skip":
        with pytest.warns(UserWarning, match=f"1 of {count + 1} graphs fit no pack"):
            plan = pack(sizes, slots, algorithm=algorithm, oversize="skip", reserve=reserve)
        assert plan.skipped.tolist() == [giant]
        assert sorted(plan.indices.tolist()) == [i for i in range(count + 1) if i != giant]
    else:
        plan = pack(sizes, slots, algorithm=algorithm, oversize="trim", reserve=reserve)
        assert plan.oversize.tolist() == [giant]
        assert sorted(plan.indices.tolist()) == list(range(count + 1))


def test_a_trimmed_graph_counts_with_what_is_left_of_it():
    plan = pack(
        {"nodes": [3, 50, 4]},
        {"nodes": 11, "graphs": 9},
        oversize="trim",
        algorithm="next_fit",
    )
    assert [members.tolist() for members in plan] == [[0], [1], [2]]
    assert plan.used["nodes"].tolist() == [3, 10, 4]


def test_an_oversize_graph_is_named_with_its_sizes_the_limit_and_the_remedy():
    sizes = {"nodes": [5, 90, 7, 80], "edges": [10, 20, 10, 400]}
    with pytest.raises(BatchTooLarge) as error:
        pack(sizes, {"nodes": 64, "edges": 300, "graphs": 8})
    message = str(error.value)
    assert "graph 1 has 90 nodes and 20 edges, but a pack holds 63 nodes (1 more" in message
    assert "raise slots to {'nodes': 91, 'edges': 401, 'graphs': 8}" in message
    assert "oversize='skip'" in message
    pack(sizes, {"nodes": 91, "edges": 401, "graphs": 8})  # the remedy works


def test_next_fit_keeps_the_order():
    sizes = {"nodes": [4, 4, 4, 9, 1, 1]}
    plan = pack(sizes, {"nodes": 11, "graphs": 9}, algorithm="next_fit")
    assert [members.tolist() for members in plan] == [[0, 1], [2], [3, 4], [5]]


def test_best_fit_finds_the_graph_that_fills_the_pack():
    sizes = {"nodes": [6, 3, 2, 4, 7, 8]}
    plan = pack(sizes, {"nodes": 11, "graphs": 9})
    assert sorted(sorted(members.tolist()) for members in plan) == [[0, 3], [1, 4], [2, 5]]


def test_lpfhp_places_large_graphs_first():
    sizes = {"nodes": [2, 8, 3, 7, 5, 5]}
    plan = pack(sizes, {"nodes": 11, "graphs": 9}, algorithm="lpfhp")
    assert sorted(sorted(members.tolist()) for members in plan) == [[0, 1], [2, 3], [4, 5]]


def test_lpfhp_counts_equal_sizes_in_keys_of_any_width():
    wide = 2**40
    sizes = {"nodes": [wide, 1, wide, 1], "edges": [wide, 2, wide, 3], "pairs": [wide, 2, wide, 2]}
    slots = {"nodes": wide + 2, "edges": wide + 4, "pairs": wide + 3, "graphs": 3}
    plan = pack(sizes, slots, algorithm="lpfhp")
    assert sorted(sorted(member % 2 for member in members) for members in plan) == [[0, 1], [0, 1]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shuffled_epochs_pack_other_graphs_together(algorithm):
    # Few distinct sizes: a histogram can only exchange graphs of equal sizes.
    sizes = {"nodes": molecules(2_000)["nodes"], "edges": molecules(2_000)["nodes"] * 16}
    first, second = (
        pack(sizes, MOLECULE_SLOTS, algorithm=algorithm, seed=7, epoch=epoch) for epoch in (0, 1)
    )
    together = {tuple(sorted(members.tolist())) for members in first}
    assert together.isdisjoint(tuple(sorted(members.tolist())) for members in second)


def test_shuffled_packs_are_spread_over_the_epoch():
    # With sorted data, early packs must not hold early graphs.
    sizes = {axis: np.sort(column) for axis, column in molecules(5_000).items()}
    plan = pack(sizes, MOLECULE_SLOTS, algorithm="lpfhp", seed=3)
    half = len(plan) // 2
    early = np.mean([sizes["nodes"][plan[i]].mean() for i in range(half)])
    late = np.mean([sizes["nodes"][plan[i]].mean() for i in range(half, len(plan))])
    assert abs(early - late) < 0.5


@pytest.mark.parametrize(("nodes", "least_nodes", "least_edges"), [(512, 0.985, 0.98)])
def test_molecules_fill_both_axes(nodes, least_nodes, least_edges):
    sizes = molecules(20_000)
    plan = pack(sizes, choose_slots(sizes, nodes=nodes), seed=0)
    assert plan.efficiency["nodes"] >= least_nodes
    assert plan.efficiency["edges"] >= least_edges


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_graphs(algorithm, count):
    sizes = {"nodes": np.full(count, 5), "edges": np.zeros(count, int)}
    plan = pack(sizes, {"nodes": 9, "edges": 0, "graphs": 2}, algorithm=algorithm, seed=1)
    assert len(plan) == count
    assert plan.efficiency["nodes"] == pytest.approx(5 / 9 * count)


def test_the_targets_choose_slots():
    sizes = molecules(3_000)
    plan = pack(sizes, "auto", target_nodes=512)
    assert plan.slots == choose_slots(sizes, nodes=512)
    assert pack(sizes, "auto", target_graphs=32).slots == choose_slots(sizes, graphs=32)


NODES = {"nodes": [3, 4]}
SLOTS = {"nodes": 9, "graphs": 3}


@pytest.mark.parametrize(
    ("sizes", "slots", "settings", "fix"),
    [
        ({}, SLOTS, {}, "a dict of arrays by axis"),
        ([3, 4], SLOTS, {}, "a dict of arrays by axis.*got a list"),
        ({"nodes": [3, 4], "edges": [1]}, SLOTS, {}, "lengths {'nodes': 2, 'edges': 1}"),
        ({"nodes": [3.0, 4.0]}, SLOTS, {}, r"are float64.*dtype=np\.int64"),
        ({"nodes": [3, -4]}, SLOTS, {}, r"sizes\['nodes'\]\[1\] is -4"),
        ({"nodes": [[3], [4]]}, SLOTS, {}, r"one number per graph, got shape \[2, 1\]"),
        ({"nodes": [3], "graphs": [1]}, SLOTS, {}, r"limit their number with slots\['graphs'\]"),
        (NODES, {"nodes": 9}, {}, "no entry for 'graphs'.*choose_slots"),
        (NODES, {**SLOTS, "edge": 9}, {}, "'edge', which sizes do not have; axes are nodes and gr"),
        (NODES, {"nodes": 9.5, "graphs": 3}, {}, r"slots\['nodes'\] must be a whole number"),
        (NODES, {"nodes": 9, "graphs": 1}, {}, "no graph fits; give at least 2"),
        (NODES, {"nodes": -9, "graphs": 3}, {}, "must not be negative, got -9"),
        (NODES, "automatic", {}, "a dict by axis or 'auto', got 'automatic'"),
        (NODES, SLOTS, {"target_nodes": 512}, "pass slots='auto', or leave the targets out"),
        (NODES, "auto", {}, "say how large a pack should be"),
        (NODES, SLOTS, {"algorithm": "magic"}, "one of 'next_fit', 'best_fit', 'lpfhp'"),
        (NODES, SLOTS, {"seed": -1}, "must not be negative, got -1 and 0"),
        (NODES, SLOTS, {"reserve": -1}, "reserve must not be negative"),
        ({"nodes": [99]}, SLOTS, {"oversize": "drop"}, "'error', 'skip' or 'trim', got 'drop'"),
    ],
)
def test_mistakes_name_the_fix(sizes, slots, settings, fix):
    with pytest.raises(OptionsError, match=fix):
        pack(sizes, slots, **settings)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from size_strategies import molecules

from torchkiln.core import OptionsError
from torchkiln.packing import choose_slots, pack, split_giants


def heavy_tailed(count=20_000, density=1.0, seed=0):
    """A few graphs with 10 to 50 times the median number of nodes."""
    random = np.random.default_rng(seed)
    nodes = np.maximum(random.lognormal(3, 0.4, count), 2).astype(np.int64)
    giants = random.random(count) < 0.003
    nodes[giants] = (20 * random.uniform(10, 50, giants.sum())).astype(np.int64)
    edges = (nodes**density * random.uniform(3, 5, count)).astype(np.int64)
    return {"nodes": nodes, "edges": edges}


@pytest.mark.parametrize("density", [1.0, 1.3])
@pytest.mark.parametrize("axis", ["nodes", "edges"])
def test_both_plans_are_full(density, axis):
    sizes = heavy_tailed(density=density)
    plans = split_giants(sizes, nodes=512, seed=0)
    slots = sum(len(plan) * plan.slots[axis] for plan in plans)
    assert sizes[axis].sum() / slots >= 0.95
    # The few packs of giants are hard to fill to the last slot.
    assert min(plan.efficiency[axis] for plan in plans) >= 0.88


def test_one_plan_for_all_is_full_too():
    sizes = heavy_tailed(density=1.3)
    with pytest.warns(UserWarning, match="split_giants"):
        slots = choose_slots(sizes, nodes=512)
    plan = pack(sizes, slots, seed=0)
    assert min(plan.efficiency["nodes"], plan.efficiency["edges"]) >= 0.9


@settings(deadline=None, max_examples=25)
@given(
    giants=st.lists(st.integers(100, 900), max_size=12),
    seed=st.none() | st.integers(0, 3),
    count=st.integers(30, 200),
)
def test_the_plans_share_all_graphs(giants, seed, count):
    sizes = molecules(count)
    places = np.linspace(0, count - 1, len(giants)).astype(int)
    sizes["nodes"][places] = giants
    sizes["edges"][places] = np.array(giants, int) * 9
    ordinary, large = split_giants(
        sizes, slots={"nodes": 90, "edges": 1_500, "graphs": 9}, seed=seed
    )
    together = np.sort(np.concatenate([ordinary.indices, large.indices]))
    assert together.tolist() == list(range(count))
    has_giant = [bool((sizes["nodes"][members] > 89).any()) for members in large]
    assert all(has_giant)
    assert ordinary.slots["nodes"] == 90


def test_without_giants_the_second_plan_is_empty():
    sizes = molecules(500)
    ordinary, large = split_giants(sizes, nodes=256, seed=1)
    assert ordinary == pack(sizes, choose_slots(sizes, nodes=256), seed=1)
    assert (len(large), large.num_graphs) == (0, 0)


def test_slots_are_the_same_in_every_epoch_and_can_be_given():
    sizes = heavy_tailed(5_000)
    first = split_giants(sizes, nodes=512, seed=0, epoch=0)
    second = split_giants(sizes, nodes=512, seed=0, epoch=1)
    assert [plan.slots for plan in first] == [plan.slots for plan in second]
    assert first[1] != second[1]
    # The order of a dict must not matter.
    giant_slots = dict(reversed(list(first[1].slots.items())))
    given = split_giants(sizes, slots=first[0].slots, giant_slots=giant_slots, seed=0, epoch=1)
    assert given == second


@pytest.mark.parametrize(
    ("sizes", "settings", "match"),
    [
        (molecules(0), {"nodes": 64}, "sizes are empty"),
        (molecules(50), {}, "say how large a pack should be"),
        (molecules(50), {"nodes": 10}, "more than half of the graphs would be giants"),
        (
            molecules(50),
            {"nodes": 64, "slots": {"nodes": 64, "edges": 900, "graphs": 5}},
            "a target or slots, not both",
        ),
        (molecules(50), {"slots": {"nodes": 2, "edges": 2, "graphs": 2}}, "no graph fits a pack"),
    ],
)
def test_unclear_splits_are_refused(sizes, settings, match):
    with pytest.raises(OptionsError, match=match):
        split_giants(sizes, **settings)

import io
import random
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from size_strategies import molecules, sizes_and_slots

from torchkiln.core import OptionsError, StoreError
from torchkiln.packing import PackPlan, pack


@pytest.fixture
def plan():
    sizes = molecules(300)
    sizes["nodes"][7] = 600
    with pytest.warns(UserWarning, match="skipped"):
        return pack(sizes, {"nodes": 128, "edges": 2200, "graphs": 10}, seed=1, oversize="skip")


def small_plan(**changes):
    fields = {
        "indices": [4, 2, 0],
        "offsets": [0, 2, 3],
        "slots": {"nodes": 10, "graphs": 3},
        "used": {"nodes": [9, 5]},
    }
    return PackPlan(**{**fields, **changes})


@settings(deadline=None)
@given(
    case=sizes_and_slots(),
    world=st.integers(1, 8),
    multiple_of=st.integers(1, 4),
    giant=st.booleans(),
)
def test_ranks_share_all_graphs_in_equally_many_packs(case, world, multiple_of, giant):
    sizes, slots, reserve = case
    middle = len(sizes["nodes"]) // 2
    if giant:
        sizes = {axis: np.insert(column, middle, 10**6) for axis, column in sizes.items()}
    plan = pack(sizes, slots, seed=3, reserve=reserve, oversize="trim")
    parts = [plan.for_rank(rank, world, multiple_of=multiple_of) for rank in range(world)]
    together = np.sort(np.concatenate([part.indices for part in parts]))
    assert together.tolist() == list(range(len(sizes["nodes"])))
    assert len({len(part) for part in parts}) == 1
    assert len(parts[0]) % multiple_of == 0
    assert len(parts[0]) * world - len(plan) < world * multiple_of  # no more filler than needed
    trimmed = np.concatenate([part.oversize for part in parts]).tolist()
    assert trimmed == ([middle] if giant else [])


def test_a_rank_gets_every_nth_pack_and_then_filler():
    plan = small_plan()
    last = plan.for_rank(1, 4, multiple_of=2)
    assert [pack.tolist() for pack in last] == [[0], []]
    assert last.used["nodes"].tolist() == [5, 0]
    assert last.efficiency == {"nodes": 5 / 20, "graphs": 1 / 6}
    assert [len(pack) for pack in plan.for_rank(3, 4, multiple_of=2)] == [0, 0]


def test_skipped_graphs_are_reported_by_one_rank(plan):
    assert [len(plan.for_rank(rank, 3).skipped) for rank in range(3)] == [1, 0, 0]


def test_ranks_take_packs_for_all_their_replicas_at_once():
    plan = PackPlan(
        np.arange(11), np.arange(12), {"nodes": 1, "graphs": 1}, {"nodes": np.ones(11, dtype=int)}
    )
    shares = [plan.for_rank(rank, 2, multiple_of=4, replicas=2) for rank in range(2)]
    assert [[pack.tolist() for pack in share] for share in shares] == [
        [[0], [1], [4], [5], [8], [9], [], []],
        [[2], [3], [6], [7], [10], [], [], []],
    ]


@pytest.mark.parametrize("replicas", [0, 3])
def test_a_combined_batch_has_packs_for_every_replica(plan, replicas):
    with pytest.raises(OptionsError, match=f"replicas must divide multiple_of, 4, got {replicas}"):
        plan.for_rank(0, 2, multiple_of=4, replicas=replicas)


@pytest.mark.parametrize(
    ("rank", "world", "multiple_of", "match"),
    [(2, 2, 1, r"rank must be in 0\.\.1, got 2"), (0, 2, 0, "at least 1, got 0")],
)
def test_impossible_ranks_are_refused(plan, rank, world, multiple_of, match):
    with pytest.raises(OptionsError, match=match):
        plan.for_rank(rank, world, multiple_of=multiple_of)


def test_efficiency_counts_reserved_slots_as_waste():
    plan = pack({"nodes": [9, 9]}, {"nodes": 10, "graphs": 2})
    assert plan.efficiency == {"nodes": 0.9, "graphs": 0.5}


def test_a_saved_plan_comes_back_equal(plan, tmp_path):
    path = tmp_path / "deep" / "plan.npz"
    plan.save(path)
    assert PackPlan.load(path) == plan
    assert [file.name for file in path.parent.iterdir()] == ["plan.npz"]


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_damaged_file_is_refused(plan, tmp_path, kept):
    path = tmp_path / "plan.npz"
    plan.save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(StoreError, match="plan again"):
        PackPlan.load(path)


def test_damage_anywhere_is_refused_or_has_no_effect(plan, tmp_path):
    path = tmp_path / "plan.npz"
    plan.save(path)
    content = path.read_bytes()
    chance = random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            found = PackPlan.load(path)
        except StoreError:
            continue
        assert found == plan


def file_with(tmp_path, **changes):
    path = tmp_path / "plan.npz"
    small_plan().save(path)
    with np.load(path) as file:
        arrays = {**file, **changes}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"offsets": np.array([0.0, 2.0, 3.0])},
        {"indices": np.array([[4, 2, 0]])},
        {"indices": np.array(["a", "b", "c"])},
        {"axes": np.array("nodes")},
        {"offsets": np.array([0, 2, 9])},
        {"slots": np.array([1])},
    ],
)
def test_a_file_with_other_contents_is_refused(tmp_path, changes):
    with pytest.raises(StoreError, match="plan again"):
        PackPlan.load(file_with(tmp_path, **changes))


def test_a_file_that_claims_more_than_it_holds_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i8", "fortran_order": False, "shape": (10**12,)}
    )
    path = file_with(tmp_path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in {**parts, "indices.npy": header.getvalue()}.items():
            archive.writestr(name, part)
    with pytest.raises(StoreError, match="plan again"):
        PackPlan.load(path)


def test_a_foreign_file_is_refused(tmp_path):
    np.savez(tmp_path / "plan.npz", indices=np.arange(3))
    with pytest.raises(StoreError, match="not a pack plan of this version"):
        PackPlan.load(tmp_path / "plan.npz")
    with pytest.raises(FileNotFoundError):
        PackPlan.load(tmp_path / "missing.npz")


@pytest.mark.parametrize(
    "changes",
    [
        {"indices": [4, 0, 2]},
        {"offsets": [0, 1, 3]},
        {"slots": {"nodes": 11, "graphs": 3}},
        {"used": {"nodes": [8, 5]}},
        {"skipped": [9]},
        {"oversize": [4]},
        {"algorithm": "other"},
    ],
)
def test_any_difference_makes_plans_unequal(changes):
    assert small_plan(**changes) != small_plan()
    assert small_plan() == small_plan()
    assert small_plan() != "a plan"


def test_a_plan_cannot_be_changed():
    given_indices = np.array([4, 2, 0])
    plan = small_plan(indices=given_indices)
    with pytest.raises(ValueError, match="read-only"):
        plan.indices[0] = 1
    given_indices[0] = 9
    assert plan.indices[0] == 4


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"indices": [4, 2, 2]}, "graph 2 is not"),
        ({"indices": [4, 2, -1]}, "must not be negative, got -1"),
        ({"skipped": [4]}, "graph 4 is not"),
        ({"offsets": [0, 2, 4]}, "from 0 to the number of graphs, 3"),
        ({"offsets": []}, "from 0 to the number of graphs, 3"),
        ({"offsets": [0, 4, 3]}, "must not decrease"),
        ({"used": {"nodes": [11, 5]}}, "pack 0 takes 11 nodes, but there are only 10 slots"),
        ({"used": {"nodes": [9]}}, "one number per pack, 2"),
        ({"used": {"edges": [9, 5]}}, "must be the axes of used"),
        ({"slots": {"nodes": 10, "graphs": 1}}, "pack 0 takes 2 graphs"),
    ],
)
def test_an_inconsistent_plan_is_refused(changes, match):
    with pytest.raises(OptionsError, match=match):
        small_plan(**changes)


def test_packs_are_reached_from_both_ends():
    plan = small_plan()
    assert plan[0].tolist() == [4, 2]
    assert plan[-1].tolist() == [0]
    with pytest.raises(IndexError, match="pack 2 of a plan with 2 packs"):
        plan[2]


def test_a_plan_prints_what_one_wants_to_know(plan):
    text = str(plan)
    assert "299 graphs in" in text
    assert "best_fit" in text
    assert f"{plan.efficiency['edges']:.2%}" in text
    assert "1 graph fits no pack and was skipped" in text
    assert "nodes" in repr(plan)

"""What hostile users of the planner found: each test failed once."""

import pytest

from torchkiln.commands._plan import run_plan
from torchkiln.commands._plan_sizes import read_size_file
from torchkiln.core import BatchTooLarge, OptionsError
from torchkiln.packing import choose_slots, pack


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfenodes\n3\n", "is no text .* save it as UTF-8"),
        (b"nodes\n99999999999999999999\n", "must hold 1 whole numbers in every line"),
        (b"nodes,nodes\n3,4\n", "names an axis twice: 'nodes,nodes'"),
        (
            b"nodes,edges\n3,4\n\n5\n",
            "must hold 2 whole numbers in every line, .* but line 4 is '5'",
        ),
    ],
)
def test_a_bad_csv_is_explained(tmp_path, content, message):
    path = tmp_path / "sizes.csv"
    path.write_bytes(content)
    with pytest.raises(OptionsError, match=message):
        read_size_file(path)


def test_decided_slots_that_hold_no_graph_are_the_ones_blamed():
    sizes = {"nodes": [3, 5, 7], "edges": [4, 9, 8]}
    slots = choose_slots(sizes, nodes=16, slots={"edges": 2})
    with pytest.raises(BatchTooLarge, match="3 nodes and 4 edges, but a pack holds 1 edges"):
        pack(sizes, slots)


@pytest.mark.parametrize("target", ["save", "picture"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, target):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("nodes,edges\n3,4\n5,9\n7,8\n")
    arguments = dict.fromkeys(["dataset", "nodes", "graphs", "edges", "cutoff_angstrom"])
    wanted = {"save": None, "picture": None, target: sizes / "plan.png"}
    with pytest.raises(OptionsError, match=r"cannot write .*sizes\.csv.*; name another file"):
        run_plan(sizes=sizes, algorithm="best_fit", **arguments, **wanted)

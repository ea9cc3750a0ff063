import os
import subprocess
import sys

import numpy as np
import pytest

from torchkiln import cli
from torchkiln.commands._plan import run_plan
from torchkiln.commands._plan_sizes import read_size_file
from torchkiln.core import OptionsError
from torchkiln.packing import PackPlan

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def sizes_csv(tmp_path):
    random = np.random.default_rng(0)
    nodes = random.integers(3, 30, 2_000)
    path = tmp_path / "sizes.csv"
    np.savetxt(
        path,
        np.stack([nodes, nodes * 4], 1),
        "%d",
        delimiter=",",
        header="nodes,edges",
        comments="",
    )
    return path


def run(capfd, *args):
    code = cli.main(["plan", *map(str, args)])
    out, err = capfd.readouterr()
    return code, out, err


def test_the_table_compares_all_algorithms_with_padding(capfd, sizes_csv):
    code, out, _ = run(capfd, "--sizes", sizes_csv, "--nodes", 256)
    assert code == 0
    for row in ("next_fit", "best_fit", "lpfhp", "pad each graph to the largest"):
        assert row in out
    assert "2,000 graphs; every batch has 256 nodes" in out
    assert "pack(sizes, {'nodes': 256, 'edges': " in out


def test_the_saved_plan_is_the_one_of_the_chosen_algorithm(capfd, sizes_csv, tmp_path):
    target = tmp_path / "plan.npz"
    code, _, err = run(
        capfd,
        *["--sizes", sizes_csv, "--graphs", 12, "--edges", 1000],
        *["--algorithm", "next_fit", "--save", target],
    )
    assert code == 0, err
    plan = PackPlan.load(target)
    assert plan.algorithm == "next_fit"
    assert plan.slots["edges"] == 1000
    assert sorted(plan.indices.tolist()) == list(range(2_000))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_picture_is_drawn_for_any_number_of_axes(capfd, tmp_path, axes):
    sizes = np.random.default_rng(0).integers(3, 30, 500)
    np.save(tmp_path / "sizes.npy", np.stack([sizes, sizes * 4, sizes * 2], 1)[:, :axes])
    code, _, err = run(
        capfd, "--sizes", tmp_path / "sizes.npy", "--nodes", 128, "--picture", tmp_path / "a.png"
    )
    assert code == 0, err
    content = (tmp_path / "a.png").read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 20_000


def test_giants_are_told_in_one_line(capfd, tmp_path):
    np.save(tmp_path / "sizes.npy", np.append(np.full(999, 5), 700))
    code, out, err = run(capfd, "--sizes", tmp_path / "sizes.npy", "--nodes", 128)
    assert code == 0
    assert "every batch has 701 nodes" in out
    assert err.startswith("note: 1 of 1,000 graphs are larger than a pack of the size asked for")
    assert "split_giants" in err


@pytest.mark.parametrize("kind", ["flat", "columns", "structured", "npz"])
def test_size_files_of_numpy(capfd, tmp_path, kind):
    nodes, edges = np.arange(3, 103), np.arange(3, 103) * 2
    path = tmp_path / ("sizes.npz" if kind == "npz" else "sizes.npy")
    if kind == "flat":
        np.save(path, nodes)
    elif kind == "columns":
        np.save(path, np.stack([nodes, edges], 1))
    elif kind == "structured":
        array = np.zeros(100, dtype=[("nodes", np.int32), ("edges", np.int64)])
        array["nodes"], array["edges"] = nodes, edges
        np.save(path, array)
    else:
        np.savez(path, nodes=nodes, edges=edges)
    code, out, err = run(capfd, "--sizes", path, "--nodes", 512)
    assert code == 0, err
    assert ("edges" in out) == (kind != "flat")


def test_a_saved_store_can_be_planned(capfd, tmp_path):
    import torch
    from torch_geometric.data import Data

    from torchkiln.graphs.store._store import GraphStore

    ring = [
        Data(x=torch.ones(n, 1), edge_index=torch.stack([torch.arange(n), torch.arange(n).roll(1)]))
        for n in range(3, 43)
    ]
    GraphStore.from_dataset(ring, progress=False).save(tmp_path / "rings")
    code, out, err = run(capfd, "--dataset", tmp_path / "rings", "--nodes", 128)
    assert code == 0, err
    assert "rings: share of slots" in out
    assert "40 graphs; every batch has" in out


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        ([], "--dataset qm9, --dataset DIRECTORY"),
        (["--dataset", "qm7"], "unknown dataset 'qm7'; choose from: qm9"),
        (["--sizes", "missing.csv"], "there is no file missing.csv"),
        (
            ["--sizes", "{csv}", "--algorithm", "magic"],
            "algorithm must be best_fit, next_fit or lpfhp",
        ),
        (["--sizes", "{csv}", "--nodes", "99", "--graphs", "3"], "give one of them"),
        (["--sizes", "{csv}", "--picture", "plan.bmp"], "end its name in .png, .svg, .pdf"),
        (["--sizes", "{csv}", "--cutoff_angstrom", "6"], "--sizes has its own"),
        (["--sizes", "{csv}", "--nodes", "256", "--edges", "40"], "raise slots to"),
        (["--sizes", "{headless}"], "must begin with the names of its axes"),
        (["--sizes", "{broken}"], "2 whole numbers in every line"),
        (["--sizes", "{ragged}"], "2 whole numbers in every line"),
        (["--sizes", "{empty}"], "there are no graphs to plan"),
        (["--sizes", "{text}"], "save the sizes as one of them"),
        (["--sizes", "{notnpy}"], "holds no plain array"),
        (["--sizes", "{notnpz}"], "holds no plain array"),
        (["--sizes", "{cube}"], r"has shape [2, 2, 2]; wanted are [graphs]"),
    ],
)
def test_mistakes_get_the_remedy(capfd, sizes_csv, tmp_path, args, remedy):
    files = {
        "headless.csv": "3,4\n5,6\n",
        "broken.csv": "nodes,edges\n3,4\n5,6.5\n",
        "ragged.csv": "nodes,edges\n3,4\n5\n",
        "empty.csv": "nodes,edges\n",
        "text.txt": "3",
        "notnpy.npy": "3",
        "notnpz.npz": "PK\3\4 and nothing else",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2), int))
    paths = {name.partition(".")[0]: tmp_path / name for name in [*files, "cube.npy"]}
    code, _, err = run(capfd, *[arg.format(csv=sizes_csv, **paths) for arg in args])
    # Sizes that do not fit into the slots are no mistake of the command line.
    assert code == (1 if remedy == "raise slots to" else 2)
    assert remedy in err
    assert "Traceback" not in err


def test_damaged_size_files_are_refused_or_read_as_they_were(tmp_path):
    sizes = {"nodes": np.arange(50), "edges": np.arange(50) * 2}
    path = tmp_path / "sizes.npz"
    np.savez_compressed(path, **sizes)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            found = read_size_file(path)
        except OptionsError:
            continue
        assert found.keys() == sizes.keys()
        assert all(np.array_equal(found[axis], sizes[axis]) for axis in sizes)


CLAIM = (
    b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
    + b"\n"
)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("sizes.npy", CLAIM, "claims an array"),
        ("sizes.npy", b"", "holds no plain array"),
        ("sizes.npz", b"PK\x03\x04", "holds no plain array"),
        ("sizes.csv", b"nodes,edges\n1,2\n\xff", "line 3: this is no text"),
        ("sizes.csv", b"nodes\n" + b"9" * 5000, "whole numbers in every line"),
    ],
)
def test_damaged_sizes_are_named(capfd, tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    code, _, err = run(capfd, "--sizes", str(path))
    assert code == 2
    assert words in err
    assert str(path) in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: &a [1, *a]", "line 1: *a stands for nothing"),
        ("nodes: " + "[" * 3000 + "]" * 3000, "line 1: nested deeper"),
        ("nodes: 1\nnodes: 2", "line 2: the key 'nodes' is there twice"),
    ],
)
def test_damaged_config_files_are_named(capfd, tmp_path, text, words):
    path = tmp_path / "plan.yml"
    path.write_text(text)
    code, _, err = run(capfd, "--config", str(path))
    assert code == 2
    assert f"{path}, {words}" in err
    assert "Traceback" not in err


def test_help_teaches_and_stays_light():
    code = (
        "import sys; from torchkiln.cli import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'numba', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    for option in ("--dataset", "--sizes", "--nodes", "--graphs", "--edges", "--picture"):
        assert option in words
    assert "directory of a saved GraphStore" in words


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


@pytest.mark.parametrize("target", ["save", "picture"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, target):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("nodes,edges\n3,4\n5,9\n7,8\n")
    arguments = dict.fromkeys(["dataset", "nodes", "graphs", "edges", "cutoff_angstrom"])
    wanted = {"save": None, "picture": None, target: sizes / "plan.png"}
    with pytest.raises(OptionsError, match=r"cannot write .*sizes\.csv.*; name another file"):
        run_plan(sizes=sizes, algorithm="best_fit", **arguments, **wanted)

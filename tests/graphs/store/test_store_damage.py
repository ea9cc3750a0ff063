"""Whatever happens to the files of a store: an error, or the graphs that were put in."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil

import numpy as np
import pytest
import torch
from _stored_graphs import assert_same_graph, rich_graph, rich_graphs, two_type_graphs
from torch_geometric.data import Data

from torchkiln.core import StoreError
from torchkiln.graphs import BatchSpec, FixedSizeLoader, GraphStore, collate
from torchkiln.graphs.store import _block_kernels, _blocks
from torchkiln.graphs.store._checksums import BLOCK_BYTES

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
SPECS = {
    "flat": BatchSpec(60, 60, 14),
    "typed": BatchSpec({"paper": 30, "author": 30}, {WRITES: 30, CITES: 30}, 14),
}
GRAPHS = {"flat": rich_graphs(), "typed": two_type_graphs()}


@pytest.fixture(params=["flat", "typed"])
def kind(request):
    return request.param


@pytest.fixture
def sound(kind, tmp_path):
    GraphStore.build(GRAPHS[kind], tmp_path / "sound", progress=False)
    return tmp_path / "sound"


def use(directory, kind, way):
    """Read everything in one way; return None, or what is wrong although nobody said so."""
    graphs, spec = GRAPHS[kind], SPECS[kind]
    everything = list(range(len(graphs)))
    expected = collate(GraphStore.from_dataset(graphs, progress=False), everything, spec)
    store = GraphStore.open(directory)
    assert store.sizes.keys() == GraphStore.from_dataset(graphs, progress=False).sizes.keys()
    if way == "graphs":
        for got, graph in zip(store, graphs, strict=True):
            assert_same_graph(got, graph)
    elif way == "batch":
        assert_same_graph(collate(store, everything, spec), expected)
    elif way == "pickled":
        again = pickle.loads(pickle.dumps(store))
        assert_same_graph(collate(again, everything, spec), expected)
    elif way == "saved":
        for got, graph in zip(store[everything].save(directory / "copy"), graphs, strict=True):
            assert_same_graph(got, graph)
    else:
        store.columns  # noqa: B018 - reads everything
        for got, graph in zip(store, graphs, strict=True):
            assert_same_graph(got, graph)


def damage_all(sound, kind, harm, count):
    """Harm copies of a store at random places; return how often it was noticed."""
    chance = random.Random(1)
    noticed = 0
    files = sorted(sound.iterdir())
    ways = ["graphs", "batch", "pickled", "saved", "columns"]
    for number in range(count):
        copy = sound.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sound, copy)
        harm(copy / files[number % len(files)].name, chance)
        try:
            use(copy, kind, ways[number // len(files) % len(ways)])
        except StoreError:
            noticed += 1
    return noticed


def flip(path, chance):
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut_off(path, chance):
    os.truncate(path, chance.randrange(path.stat().st_size))


def test_no_flipped_bit_ever_changes_a_value(sound, kind):
    # Flips in the blanks of the header have no effect.
    assert damage_all(sound, kind, flip, 220) > 190


def test_no_truncated_file_is_ever_used(sound, kind):
    assert damage_all(sound, kind, cut_off, 220) == 220


def large_graphs():
    """Graphs whose columns take several blocks."""
    return [rich_graph(i, 200 + i, 300 + i) for i in range(40)]


@pytest.fixture
def large(tmp_path):
    store = GraphStore.build(large_graphs(), tmp_path / "large", progress=False)
    (x,) = (tmp_path / "large").glob("*-x.npy")
    assert x.stat().st_size > 2 * BLOCK_BYTES
    return store


@pytest.mark.parametrize("pattern", ["*-x.npy", "*-edge_index.npy", "*-edge_attr.npy"])
def test_damage_is_found_in_any_block(large, pattern):
    (path,) = large.path.glob(pattern)
    content = path.read_bytes()
    spec = BatchSpec(1000, 2000, 5)
    reference = GraphStore.from_dataset(large_graphs(), progress=False)
    for place in range(192, len(content), BLOCK_BYTES // 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        store = GraphStore.open(large.path)
        refused = 0
        for index in range(len(store)):
            try:
                batch = collate(store, [index], spec)
            except StoreError:
                refused += 1
                continue
            assert_same_graph(batch, collate(reference, [index], spec))
        assert 0 < refused < len(store)


def test_only_what_is_read_is_verified(large):
    (path,) = large.path.glob("*-x.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    store = GraphStore.open(large.path)
    assert_same_graph(store[0], large_graphs()[0])
    with pytest.raises(StoreError, match=r"-x\.npy is damaged"):
        store[-1]
    with pytest.raises(StoreError, match=r"-x\.npy is damaged"):
        store[-1]  # an error does not make it verified
    spec = BatchSpec(1000, 2000, 5)
    assert "x" not in collate(store, [39], spec, exclude_keys=["x"])


def test_a_batch_of_filler_imitates_a_verified_graph(large):
    (path,) = large.path.glob("*-charge.npy")
    content = bytearray(path.read_bytes())
    content[192] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="charge"):
        collate(GraphStore.open(large.path), [], BatchSpec(10, 10, 3))


def test_graphs_are_not_cut_by_damaged_edges(large):
    (path,) = large.path.glob("*-edge_index.npy")
    content = bytearray(path.read_bytes())
    content[-8] ^= 1  # an end of the last graph's last edge
    path.write_bytes(content)
    loader = FixedSizeLoader(
        GraphStore.open(large.path),
        BatchSpec(100, 100, 3),
        exclude_keys=["edge_index"],
        oversize="trim",
    )
    with pytest.raises(StoreError, match=r"edge_index\.npy is damaged"):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_hand_out_no_damaged_batch(large, num_workers):
    (path,) = large.path.glob("*-edge_attr.npy")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    store = GraphStore.open(large.path)
    loader = FixedSizeLoader(
        store, BatchSpec(1000, 2000, 5), num_workers=num_workers, strategy="padded", batch_size=2
    )
    with pytest.raises(Exception, match=r"edge_attr\.npy is damaged"):
        list(loader)
    loader.terminate()


def count_comparisons(monkeypatch):
    """Return a list that grows by one for each block that is compared."""
    calls = []
    digest = _blocks.xxh3_64_intdigest
    monkeypatch.setattr(
        _blocks, "xxh3_64_intdigest", lambda block: calls.append(1) or digest(block)
    )
    return calls


def test_what_was_verified_is_not_read_again(large, monkeypatch):
    calls = count_comparisons(monkeypatch)
    store = GraphStore.open(large.path)
    opened = len(calls)
    every = [store[index] for index in range(len(store))]
    read = len(calls) - opened
    assert read > 5
    for _ in range(3):
        collate(store, [0, 39], BatchSpec(1000, 2000, 5))
    assert len(calls) - opened == read
    assert torch.equal(every[3].x, large_graphs()[3].x)
    assert np.array_equal(store.columns.arrays["x"], large.columns.arrays["x"])


@pytest.mark.parametrize("names", [["x"], ["edge_index", "x", "y"], ["name", "wave"]])
@pytest.mark.parametrize("selected", [None, [3, 38, 3, 17], []])
def test_flags_are_looked_at_until_all_that_is_ever_read_was_compared(large, names, selected):
    view = GraphStore.open(large.path)
    view = view if selected is None else view[selected]
    reads = view.reads(names)
    graphs = view.physical(range(len(view)))
    for graph in [*graphs.tolist(), 0]:
        assert not reads._is_complete
        reads.verify(np.array([graph]))
        left = _block_kernels.find_blocks(reads._table, graphs, reads._guard.verified)
        assert reads._is_complete == (len(left) == 0)
        if reads._is_complete:
            return
    raise AssertionError("all graphs were read, and flags are still looked at")


def test_verifying_in_any_order_looks_at_each_block_once(large, monkeypatch):
    looked = []
    skip = _block_kernels.skip_blocks

    def counted(ranges, done, verified):
        found = skip(ranges, done, verified)
        looked.append(found - done)
        return found

    monkeypatch.setattr(_block_kernels, "skip_blocks", counted)
    store = GraphStore.open(large.path)
    for index in np.random.default_rng(1).permutation(len(store)).tolist():
        store[index]
    assert store._reads._is_complete
    assert min(looked) >= 0
    assert sum(looked) == store._reads._num_blocks


def test_forked_processes_share_what_was_verified(large, monkeypatch):
    store = GraphStore.open(large.path)
    child = multiprocessing.get_context("fork").Process(target=list, args=(store,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    calls = count_comparisons(monkeypatch)
    list(store)
    assert not calls
    list(pickle.loads(pickle.dumps(store)))  # opens the files anew
    assert len(calls) > 5


def test_verification_reads_everything_once(large, monkeypatch):
    calls = count_comparisons(monkeypatch)
    store = GraphStore.open(large.path, verify=True)
    paths = [path for path in large.path.glob("*.npy") if path.name != "checksums.npy"]
    assert len(calls) == sum(-(-path.stat().st_size // BLOCK_BYTES) for path in paths)
    list(store)
    assert len(calls) == sum(-(-path.stat().st_size // BLOCK_BYTES) for path in paths)


def named_graphs():
    return [
        Data(
            x=torch.ones(n, 1),
            edge_index=torch.zeros(2, n, dtype=torch.int64),
            y=torch.tensor([n]),
            name=f"gräph {n}",
        )
        for n in range(1, 9)
    ]


def test_damaged_texts_are_store_errors(tmp_path):
    GraphStore.build(named_graphs(), tmp_path / "store", progress=False)
    (path,) = (tmp_path / "store").glob("03-*.npy")
    content = bytearray(path.read_bytes())
    content[-4] ^= 0xFF
    path.write_bytes(content)
    damaged = GraphStore.open(tmp_path / "store")
    with pytest.raises(StoreError, match=r"name\.npy is damaged.*build the store again"):
        damaged[7]

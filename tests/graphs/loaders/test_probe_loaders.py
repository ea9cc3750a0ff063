"""What hostile users found: each test failed once."""

import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from torchkiln.core import OptionsError, StoreError
from torchkiln.data import LoaderError
from torchkiln.datasets import write_qm9_root
from torchkiln.graphs import (
    BatchSpec,
    FixedSizeClusterLoader,
    FixedSizeLoader,
    FixedSizeNeighborLoader,
    GraphStore,
    NeighborSampler,
    collate_combined,
    partition_graph,
)

SPEC = BatchSpec(24, 24, 5)


def small_graphs():
    return [
        Data(
            x=torch.full((n, 1), float(n)),
            edge_index=torch.zeros(2, n, dtype=torch.int64),
            y=torch.tensor([n]),
            name=f"gräph {n}",
        )
        for n in range(1, 9)
    ]


def large_graph():
    num_nodes = 40
    ring = torch.arange(num_nodes)
    return Data(
        x=ring.float()[:, None], edge_index=torch.stack([ring, (ring + 1) % num_nodes]), y=ring
    )


@pytest.fixture(scope="module")
def store():
    return GraphStore.from_dataset(small_graphs(), progress=False)


def make_fixed(store, **arguments):
    return FixedSizeLoader(store, SPEC, **arguments)


def make_cluster(_store, **arguments):
    return FixedSizeClusterLoader(large_graph(), num_parts=5, **arguments)


def make_neighbor(_store, **arguments):
    return FixedSizeNeighborLoader(large_graph(), [2], batch_size=10, **arguments)


every_loader = pytest.mark.parametrize("make", [make_fixed, make_cluster, make_neighbor])


@every_loader
@pytest.mark.parametrize("state", [None, {}, {"epoch": 0, "done": 0}, {"identity": None}])
def test_what_is_no_state_is_refused(store, make, state):
    with pytest.raises(LoaderError, match=r"no state of a loader; pass what state_dict\(\)"):
        make(store).load_state_dict(state)


@every_loader
@pytest.mark.parametrize("wrong", [{"epoch": -1}, {"epoch": None}, {"done": "3"}, {"done": -2}])
def test_a_state_with_a_wrong_number_is_refused(store, make, wrong):
    loader = make(store)
    with pytest.raises(OptionsError, match=rf"{next(iter(wrong))} must be .*, got"):
        loader.load_state_dict({**loader.state_dict(), **wrong})


@every_loader
def test_a_state_beyond_the_epoch_is_refused(store, make):
    loader = make(store)
    with pytest.raises(LoaderError, match="999 batches of epoch 0 are done, but it has"):
        loader.load_state_dict({**loader.state_dict(), "done": 999})


@every_loader
@pytest.mark.parametrize("epoch", [-1, 1.5, "2", None])
def test_an_epoch_must_be_a_whole_number(store, make, epoch):
    with pytest.raises(OptionsError, match="epoch must be"):
        make(store).set_epoch(epoch)


@every_loader
def test_numbers_of_numpy_do_not_spoil_the_state(store, make):
    loader = make(store, seed=np.int64(3), shuffle=True)
    loader.set_epoch(np.int64(2))
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    same = make(store, seed=3, shuffle=True)
    same.load_state_dict(state)
    assert same.state_dict() == loader.state_dict()


@every_loader
@pytest.mark.parametrize("num_workers", [-1, 1.5])
def test_workers_are_a_number_from_zero_on(store, make, num_workers):
    with pytest.raises(OptionsError, match=rf"num_workers must be .*, got {num_workers}"):
        make(store, num_workers=num_workers)


@pytest.mark.parametrize("make", [make_cluster, make_neighbor])
def test_an_older_iterator_never_yields_batches_of_a_newer_one(store, make):
    loader = make(store, num_workers=1, shuffle=True)
    try:
        older, newer = iter(loader), iter(loader)
        next(older)
        next(newer)
        with pytest.raises(LoaderError, match=r"ended by a newer iter\(\).*use a second loader"):
            next(older)
        assert len(list(newer)) == len(loader) - 1
    finally:
        loader.terminate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1, "shuffle": True, "strategy": "padded", "batch_size": 2}, "seed must be"),
        ({"seed": "x", "shuffle": True}, "seed must be a whole number, got 'x'"),
        ({"strategy": "padded", "batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"strategy": "padded", "batch_size": -3}, "batch_size must be at least 1, got -3"),
        ({"strategy": "padded", "batch_size": 2.0}, "batch_size must be a whole number"),
        ({"spec": "auto", "batch_size": "3"}, "batch_size must be a whole number, got '3'"),
        ({"spec": "auto", "num_nodes": 20.5}, "num_nodes must be a whole number, got 20.5"),
    ],
)
def test_wrong_numbers_are_named(store, arguments, message):
    with pytest.raises(OptionsError, match=message):
        FixedSizeLoader(store, **{"spec": SPEC, **arguments})


def test_workers_do_not_hide_a_wrong_mode(store):
    with pytest.raises(LoaderError, match="got 'fast'"):
        make_fixed(store, num_workers=1, mode="fast")


@pytest.mark.parametrize("arguments", [{"spec": SPEC}, {"strategy": "padded", "batch_size": 2}])
def test_an_empty_selection_is_refused(store, arguments):
    with pytest.raises(OptionsError, match="no graph to load"):
        FixedSizeLoader(store[[]], **arguments)


@pytest.mark.parametrize("edge", [[0, 7], [7, 0], [-1, 0]])
def test_a_sampler_refuses_edges_to_no_node(edge):
    # They used to overwrite memory that belongs to others.
    graph = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([edge]).T)
    with pytest.raises(
        OptionsError, match=r"edge_index has nodes from .* but there are 3; correct"
    ):
        NeighborSampler(graph, [2])


@pytest.mark.parametrize("edge", [[0, 7], [-1, 0]])
def test_a_sampler_refuses_typed_edges_to_no_node(edge):
    from torch_geometric.data import HeteroData

    graph = HeteroData()
    graph["a"].x, graph["b"].x = torch.zeros(3, 1), torch.zeros(4, 1)
    graph["a", "to", "b"].edge_index = torch.tensor([edge]).T
    with pytest.raises(OptionsError, match=r"edge_index has nodes .* of type '[ab]'"):
        NeighborSampler(graph, [2])


@pytest.mark.parametrize(
    ("num_neighbors", "message"),
    [(3, r"num_neighbors is 3; .* such as \[3\]"), ([2.5], "must be a whole number, got 2.5")],
)
def test_neighbors_are_whole_numbers_by_hop(num_neighbors, message):
    with pytest.raises(OptionsError, match=message):
        NeighborSampler(large_graph(), num_neighbors)


def test_parts_are_a_whole_number():
    with pytest.raises(OptionsError, match=r"num_parts must be a whole number, got 2.5"):
        partition_graph(large_graph().edge_index, 40, 2.5)


def test_a_mask_of_another_graph_is_refused():
    mask = torch.ones(5, dtype=torch.bool)
    with pytest.raises(OptionsError, match=r"mask of shape \[5\], but there are 40 nodes"):
        FixedSizeNeighborLoader(large_graph(), [2], input_nodes=mask, batch_size=2)


def test_a_batch_may_be_larger_than_all_seeds():
    loader = FixedSizeNeighborLoader(large_graph(), [2], batch_size=100)
    (batch,) = loader
    assert batch.x[batch.seed_mask].flatten().sort().values.tolist() == list(range(40))


def test_a_file_is_never_replaced_by_a_store(tmp_path):
    target = tmp_path / "notes.txt"
    target.write_text("precious")
    with pytest.raises(StoreError, match=r"notes\.txt is a file, so it is not replaced; choose"):
        GraphStore.build(small_graphs(), target, overwrite=True, progress=False)
    assert target.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write below .*file.*choose another directory"):
        GraphStore.build(small_graphs(), tmp_path / "file" / "store", progress=False)


def test_an_empty_selection_is_not_saved(store, tmp_path):
    with pytest.raises(StoreError, match="no graph to write"):
        store[[]].save(tmp_path / "store")
    assert not list(tmp_path.iterdir())


def test_a_store_that_appeared_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "store"

    def graphs():
        yield from small_graphs()
        GraphStore.build(small_graphs()[:3], target, progress=False)

    with pytest.raises(StoreError, match=r"another process wrote .* meanwhile"):
        GraphStore.build(graphs(), target, progress=False)
    assert len(GraphStore.open(target, verify=True)) == 3
    assert list(tmp_path.iterdir()) == [target]
    assert len(GraphStore.build(small_graphs(), target, overwrite=True, progress=False)) == 8


def test_damaged_texts_are_store_errors(tmp_path):
    GraphStore.build(small_graphs(), tmp_path / "store", progress=False)
    (path,) = (tmp_path / "store").glob("03-*.npy")
    content = bytearray(path.read_bytes())
    content[-4] ^= 0xFF
    path.write_bytes(content)
    damaged = GraphStore.open(tmp_path / "store")
    with pytest.raises(StoreError, match=r"name\.npy is damaged.*build the store again"):
        damaged[7]


def test_a_combined_batch_needs_a_pack(store):
    with pytest.raises(OptionsError, match="at least one pack"):
        collate_combined(store, [], SPEC)


def test_qm9_is_not_written_over_a_file(tmp_path):
    target = tmp_path / "notes.txt"
    target.write_text("precious")
    (tmp_path / "source").mkdir()
    with pytest.raises(StoreError, match=r"notes\.txt is a file; choose a directory"):
        write_qm9_root(target, source=tmp_path / "source")

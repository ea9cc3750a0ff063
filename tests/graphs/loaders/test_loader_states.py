"""States and epochs of every loader of graphs: what is taken, and what is refused."""

import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from torchkiln.core import OptionsError
from torchkiln.data import LoaderError
from torchkiln.graphs import (
    BatchSpec,
    FixedSizeClusterLoader,
    FixedSizeLoader,
    FixedSizeNeighborLoader,
    GraphStore,
)

SPEC = BatchSpec(24, 24, 5)


def small_graphs():
    return [
        Data(
            x=torch.full((n, 1), float(n)),
            edge_index=torch.zeros(2, n, dtype=torch.int64),
            y=torch.tensor([n]),
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

"""Several processes get, update by update, the mini-batches of one process with all replicas."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from _stored_graphs import rich_graphs
from torch_geometric.data import Data

from torchkiln.core import Options
from torchkiln.data import LoaderError
from torchkiln.graphs import (
    BatchSpec,
    Clusters,
    FixedSizeClusterLoader,
    FixedSizeLoader,
    FixedSizeNeighborLoader,
    GraphStore,
)

NUM_GRAPHS = 40
KINDS = {"packed": {}, "padded": {"strategy": "padded", "batch_size": 1}}


@pytest.fixture(scope="module")
def store():
    return GraphStore.from_dataset(rich_graphs(NUM_GRAPHS), progress=False)


def options_of(world, rank, replicas, accumulation=1, iterations=1, **more):
    return Options(
        num_processes=world,
        process_id=rank,
        replication_factor=replicas,
        gradient_accumulation=accumulation,
        device_iterations=iterations,
        **more,
    )


def loader_of(store, *shape, kind="packed", shuffle=True, **more):
    return FixedSizeLoader(
        store,
        BatchSpec(9, 10, 3),
        options=options_of(*shape, **more),
        shuffle=shuffle,
        seed=5,
        as_tensors=True,
        **KINDS[kind],
    )


def packs_of(loader, epoch=0):
    loader.set_epoch(epoch)
    return [pack.tolist() for pack in loader.plan]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_replica_gets_the_packs_of_the_folded_run(store, kind, world):
    for replicas, iterations, accumulation in itertools.product([1, 2, 3], repeat=3):
        shape = (accumulation, iterations)
        folded = loader_of(store, 1, 0, world * replicas, *shape, kind=kind)
        ranks = [
            loader_of(store, world, rank, replicas, *shape, kind=kind) for rank in range(world)
        ]
        for epoch in range(2):
            assert {loader.num_batches(epoch) for loader in ranks} == {folded.num_batches(epoch)}
            expected = packs_of(folded, epoch)
            found = [packs_of(loader, epoch) for loader in ranks]
            for number, pack in enumerate(expected):
                step, replica = divmod(number, world * replicas)
                rank, local = divmod(replica, replicas)
                assert found[rank][step * replicas + local] == pack
            assert sum(map(len, found)) == len(expected)


@pytest.mark.parametrize(("world", "replicas", "group"), [(2, 2, 2), (2, 4, 2), (3, 2, 2)])
def test_replicas_that_share_an_input_count_once(store, world, replicas, group):
    folded = loader_of(store, 1, 0, world * replicas, 2, input_group_size=group)
    ranks = [
        packs_of(loader_of(store, world, rank, replicas, 2, input_group_size=group))
        for rank in range(world)
    ]
    inputs = replicas // group
    for number, pack in enumerate(packs_of(folded)):
        step, replica = divmod(number, world * inputs)
        rank, local = divmod(replica, inputs)
        assert ranks[rank][step * inputs + local] == pack


def test_processes_with_models_of_their_own_get_packs_in_turn(store):
    whole = packs_of(loader_of(store, 1, 0, 1))
    for rank in range(2):
        share = packs_of(loader_of(store, 2, rank, 2, sync_gradients=False))
        assert [pack for pack in share if pack] == whole[rank::2]


def split(batch, num_packs):
    """Return the tensors of each mini-batch of a combined batch."""
    return [
        {name: value.chunk(num_packs)[pack] for name, value in batch.items()}
        for pack in range(num_packs)
    ]


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_batches_are_parts_of_the_folded_ones_also_after_a_resume(store, kind, taken):
    world, replicas, steps = 2, 2, 2
    folded = loader_of(store, 1, 0, world * replicas, steps, kind=kind)
    ranks = [loader_of(store, world, rank, replicas, steps, kind=kind) for rank in range(world)]
    begun = [iter(loader) for loader in (folded, *ranks)]
    for batches in begun:
        list(itertools.islice(batches, taken))
    states = [json.loads(json.dumps(loader.state_dict())) for loader in (folded, *ranks)]
    assert states[0] == states[1] == states[2]
    again = [loader_of(store, world, rank, replicas, steps, kind=kind) for rank in range(world)]
    for loader in again:
        loader.load_state_dict(states[0])
    num_compared = 0
    for whole, *parts in zip(begun[0], *again, strict=True):
        expected = split(whole, steps * world * replicas)
        shares = [split(part, steps * replicas) for part in parts]
        for step, rank, local in itertools.product(range(steps), range(world), range(replicas)):
            number = (step * world + rank) * replicas + local
            assert_same(shares[rank][step * replicas + local], expected[number])
            num_compared += 1
    assert num_compared == (folded.num_batches(0) - taken) * steps * world * replicas


def updates_of(store, world, replicas, accumulation, state=None):
    """Return what all processes together see in each update of an epoch, in any order."""
    shares = []
    for rank in range(world):
        loader = loader_of(store, world, rank, replicas, accumulation)
        if state is not None:
            loader.load_state_dict(state)
        shares.append([sorted(b["tag"][b["graph_mask"]].tolist()) for b in loader])
    return [sorted(itertools.chain(*update)) for update in zip(*shares, strict=True)]


SAME_TOTAL = [(1, 4, 1), (1, 1, 4), (1, 2, 2), (2, 2, 1), (2, 1, 2), (4, 1, 1)]


@pytest.mark.parametrize("before", SAME_TOTAL)
def test_another_number_of_processes_goes_on_with_the_same_updates(store, before):
    expected = updates_of(store, *SAME_TOTAL[0])
    world, replicas, accumulation = before
    loader = loader_of(store, world, world - 1, replicas, accumulation)
    list(itertools.islice(iter(loader), 3))
    state = loader.state_dict()
    for after in SAME_TOTAL:
        assert updates_of(store, *after) == expected
        assert updates_of(store, *after, state) == expected[3:]


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (
            (2, 0, 3),
            r"has 4 micro-batches over all processes, but here it would have 6 \(num_processes=2 x "
            r"replication_factor=3 x gradient_accumulation=1\); set replication_factor x "
            "gradient_accumulation to 2 with 2 processes",
        ),
        (
            (3, 0, 2),
            "3 processes cannot share 4 equally: start 1, 2 or 4, and set replication_factor x "
            "gradient_accumulation so that the product is 4",
        ),
        ((1, 0, 2), "set replication_factor x gradient_accumulation to 4$"),
        ((4, 0, 1, 1, 2), "made 1 updates, but here it would make 2; set device_iterations to 1"),
    ],
)
def test_other_updates_are_refused_with_the_numbers_that_would_work(store, after, message):
    state = loader_of(store, 2, 1, 2).state_dict()
    with pytest.raises(LoaderError, match=message):
        loader_of(store, *after).load_state_dict(state)


def test_a_state_of_processes_with_models_of_their_own_is_another(store):
    together = loader_of(store, 2, 0, 1)
    apart = loader_of(store, 2, 0, 1, 2, sync_gradients=False)
    with pytest.raises(LoaderError, match="from one run, this loader is of 2 processes that train"):
        apart.load_state_dict(together.state_dict())
    with pytest.raises(LoaderError, match=r"from 2 processes that train .* is of one run"):
        together.load_state_dict(apart.state_dict())


def test_an_older_state_is_taken_up_where_a_call_takes_as_many(store):
    state = loader_of(store, 2, 0, 2, 2).state_dict()
    facts = state["identity"]
    del facts["micro_batches_per_update"], facts["updates_per_call"]
    older = {**state, "done": 1, "identity": {**facts, "num_processes": 2, "packs_per_batch": 4}}
    for shape in [(2, 1, 2, 2), (2, 0, 4), (1, 0, 4, 2), (4, 3, 1, 2), (1, 0, 2, 2, 2)]:
        loader = loader_of(store, *shape)
        loader.load_state_dict(older)
        assert loader.state_dict()["done"] == 1
    apart = loader_of(store, 2, 0, 2, 2, sync_gradients=False)
    apart.load_state_dict(older)
    for shape, more in [((2, 0, 3), {}), ((4, 0, 2), {"sync_gradients": False})]:
        with pytest.raises(LoaderError, match="took 4 micro-batches in each of 2 processes"):
            loader_of(store, *shape, **more).load_state_dict(older)
    damaged = {**older, "identity": {**older["identity"], "num_processes": None}}
    with pytest.raises(LoaderError, match="in each of None processes"):
        loader_of(store, 2, 0, 2, 2).load_state_dict(damaged)


def large_graph():
    generator = torch.Generator().manual_seed(0)
    num_nodes = 120
    return Data(
        x=torch.arange(num_nodes)[:, None].float(),
        edge_index=torch.randint(num_nodes, (2, 700), generator=generator),
        y=torch.arange(num_nodes),
    )


@pytest.fixture(scope="module")
def make_loader():
    graph = large_graph()
    clusters = Clusters.partition(graph, 23)

    def make(kind, options):
        if kind == "clusters":
            spec = BatchSpec(num_nodes=20, num_edges=60, num_graphs=2)
            return FixedSizeClusterLoader(
                clusters, spec, clusters_per_batch=2, options=options, shuffle=True, seed=2
            )
        spec = BatchSpec(num_nodes=40, num_edges=60, num_graphs=2)  # some batches are trimmed
        return FixedSizeNeighborLoader(
            graph, [3, 2], spec, batch_size=7, options=options, shuffle=True, seed=2
        )

    return make


@pytest.mark.parametrize("kind", ["clusters", "neighbors"])
@pytest.mark.parametrize(
    ("world", "replicas", "steps"), [(2, 1, 1), (2, 2, 1), (2, 1, 2), (3, 2, 2), (4, 1, 1)]
)
def test_parts_of_a_large_graph_are_dealt_like_folded_ones(
    make_loader, kind, world, replicas, steps
):
    folded = make_loader(kind, options_of(1, 0, world * replicas, steps))
    ranks = [make_loader(kind, options_of(world, r, replicas, steps)) for r in range(world)]
    assert {len(loader) for loader in ranks} == {len(folded)}
    for _epoch in range(2):
        for whole, *parts in zip(folded, *ranks, strict=True):
            for name in ("x", "n_id", "edge_index", "node_mask", "edge_mask", "y"):
                expected = whole[name].chunk(steps * world * replicas)
                shares = [part[name].chunk(steps * replicas) for part in parts]
                for number, value in enumerate(expected):
                    step, replica = divmod(number, world * replicas)
                    rank, local = divmod(replica, replicas)
                    assert torch.equal(shares[rank][step * replicas + local], value), name
    states = [loader.state_dict() for loader in (folded, *ranks)]
    assert all(state == states[0] for state in states)


@pytest.mark.parametrize("kind", ["clusters", "neighbors"])
def test_large_graphs_go_on_with_another_number_of_processes(make_loader, kind):
    folded = make_loader(kind, options_of(1, 0, 2, 2))
    begun = iter(folded)
    next(begun)
    ranks = [make_loader(kind, options_of(4, rank, 1)) for rank in range(4)]
    for loader in ranks:
        loader.load_state_dict(folded.state_dict())
    for whole, *parts in zip(begun, *ranks, strict=True):
        assert torch.equal(torch.cat([part.n_id for part in parts]), whole.n_id)
    with pytest.raises(LoaderError, match=r"has 4 micro-batches .* here it would have 3"):
        make_loader(kind, options_of(3, 0, 1)).load_state_dict(folded.state_dict())


@pytest.mark.parametrize("kind", ["clusters", "neighbors"])
def test_an_older_state_of_a_large_graph_is_taken_up(make_loader, kind):
    loader = make_loader(kind, options_of(1, 0, 2))
    state = loader.state_dict()
    facts = state["identity"]
    del facts["micro_batches_per_update"], facts["updates_per_call"]
    older = {**state, "done": 2, "identity": {**facts, "num_processes": 1, "combined_factor": 2}}
    loader.load_state_dict(older)
    assert loader.state_dict()["done"] == 2
    with pytest.raises(LoaderError, match="took 2 micro-batches in each of 1 processes"):
        make_loader(kind, options_of(1, 0, 3)).load_state_dict(older)


@pytest.mark.parametrize("kind", ["clusters", "neighbors"])
def test_separate_processes_get_whole_calls_of_a_large_graph(make_loader, kind):
    whole = [b.n_id for b in make_loader(kind, options_of(1, 0, 2))]
    for rank in range(2):
        loader = make_loader(kind, options_of(2, rank, 2, sync_gradients=False))
        for got, expected in zip((b.n_id for b in loader), whole[rank::2], strict=False):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("world", [2, 3])
def test_loaders_for_validation_read_every_graph_once(store, world):
    seen = []
    for rank in range(world):
        loader = loader_of(store, world, rank, 1, shuffle=False, sync_gradients=False)
        for batch in loader:
            seen += batch["tag"][batch["graph_mask"]].tolist()
    assert sorted(seen) == list(range(NUM_GRAPHS))

"""Epochs of fixed-size batches: every graph once, in an order that can be taken up again."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
import torch
from _stored_graphs import assert_same_graph, rich_graph, rich_graphs, two_type_graphs

from torchkiln.core import BatchTooLarge, Options, OptionsError
from torchkiln.data import LoaderError
from torchkiln.graphs._spec import BatchSpec
from torchkiln.graphs.loaders._loader import FixedSizeLoader
from torchkiln.graphs.store._store import GraphStore

SPEC = BatchSpec(20, 24, 6)
NUM_GRAPHS = 40


@pytest.fixture(scope="module")
def store():
    return GraphStore.from_dataset(rich_graphs(NUM_GRAPHS), progress=False)


@pytest.fixture
def make(store):
    """Makes loaders, and ends their processes."""
    made = []

    def make_one(spec=SPEC, *, dataset=store, factor=1, rank=0, world=1, **kwargs):
        options = Options(gradient_accumulation=factor, num_processes=world, process_id=rank)
        made.append(FixedSizeLoader(dataset, spec, options=options, **kwargs))
        return made[-1]

    yield make_one
    for loader in made:
        loader.terminate()


def tags(batches) -> list[int]:
    return [tag for batch in batches for tag in batch.tag[batch.graph_mask].tolist()]


@pytest.mark.parametrize("strategy", ["packed", "padded"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("world", "factor"), [(1, 1), (1, 3), (2, 1), (3, 2), (8, 1)])
def test_every_graph_once_over_all_processes(make, strategy, shuffle, world, factor):
    kwargs = {"strategy": strategy, "shuffle": shuffle, "world": world, "factor": factor}
    spec = SPEC if strategy == "packed" else BatchSpec(20, 24, 4)
    if strategy == "padded":
        kwargs["batch_size"] = 2
    loaders = [make(spec, rank=rank, **kwargs) for rank in range(world)]
    for _ in range(2):
        lengths = {len(loader) for loader in loaders}
        epoch = [list(loader) for loader in loaders]
        assert {len(batches) for batches in epoch} == lengths
        assert len(lengths) == 1
        seen = Counter(tag for batches in epoch for tag in tags(batches))
        assert seen == Counter(range(NUM_GRAPHS))


@pytest.mark.parametrize("factor", [1, 3])
def test_shapes_never_change(make, factor):
    shapes = {
        tuple(
            (key, tuple(batch[key].shape)) for key in ("x", "edge_index", "ptr", "y", "node_mask")
        )
        for batch in make(factor=factor, shuffle=True)
    }
    assert shapes == {
        (
            ("x", (20 * factor, 5)),
            ("edge_index", (2 * factor, 24)),
            ("ptr", (7 * factor,)),
            ("y", (6 * factor, 19)),
            ("node_mask", (20 * factor,)),
        )
    }


def test_without_a_shuffle_every_epoch_is_the_same(make):
    loader = make()
    assert tags(loader) == tags(loader)


def test_a_shuffle_draws_another_order_each_epoch(make):
    loader = make(shuffle=True, seed=5)
    epochs = [tags(loader) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = make(shuffle=True, seed=5)
    assert [tags(again) for _ in range(3)] == epochs
    assert tags(make(shuffle=True, seed=6)) != epochs[0]


def test_an_epoch_can_be_chosen(make):
    loader = make(shuffle=True)
    epochs = [tags(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert tags(loader) == epochs[1]
    assert tags(loader) == epochs[2]


def test_the_seed_of_the_options_is_the_default(store):
    def order(seed, random_seed):
        options = Options(random_seed=random_seed)
        return tags(FixedSizeLoader(store, SPEC, options=options, shuffle=True, seed=seed))

    assert order(None, 9) == order(9, None)
    assert order(None, 9) != order(None, None)


@pytest.mark.parametrize("kwargs", [{}, {"num_workers": 1}, {"mode": "async"}])
def test_the_global_generator_is_not_touched(make, kwargs):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    tags(make(shuffle=True, **kwargs))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("kwargs", [{"num_workers": 2}, {"mode": "async"}])
def test_other_processes_make_the_same_batches(make, kwargs, factor):
    here, there = make(shuffle=True, factor=factor), make(shuffle=True, factor=factor, **kwargs)
    for _ in range(2):
        for got, expected in zip(there, here, strict=True):
            assert_same_graph(got, expected)


@pytest.mark.slow  # a new process imports everything anew
def test_a_saved_store_is_shared_with_spawned_processes(make, store, tmp_path):
    saved = store.save(tmp_path / "store")
    loader = make(dataset=saved, mode="async", async_options={"start_method": "forkserver"})
    assert tags(loader) == tags(make())


def test_length_is_exact_before_within_and_after_an_epoch(make):
    loader = make(shuffle=True)
    for epoch in range(4):
        expected = loader.num_batches(epoch)
        assert len(loader) == expected
        assert loader.epoch == epoch
        within = [len(loader) for _ in loader]
        assert within == [expected] * expected


def test_leaving_early_begins_the_next_epoch(make):
    loader = make(shuffle=True)
    next(iter(loader))
    assert loader.epoch == 1
    other = make(shuffle=True)
    other.set_epoch(1)
    assert tags(loader) == tags(other)


@pytest.mark.parametrize("kwargs", [{}, {"num_workers": 2}, {"mode": "async"}])
@pytest.mark.parametrize("taken", [1, 8, 13])
def test_a_run_resumes_within_an_epoch(make, kwargs, taken):
    kwargs = {**kwargs, "spec": BatchSpec(9, 10, 3)}  # more batches than are made at once
    straight = make(shuffle=True, **kwargs)
    tags(straight)
    expected = [tags(straight), tags(straight)]
    first = make(shuffle=True, **kwargs)
    tags(first)
    begun = iter(first)
    before = tags(itertools.islice(begun, taken))
    state = json.loads(json.dumps(first.state_dict()))
    second = make(shuffle=True, **kwargs)
    second.load_state_dict(state)
    assert before + tags(second) == expected[0]
    assert tags(second) == expected[1]


def test_a_state_after_the_last_batch_is_the_next_epoch(make):
    loader = make(shuffle=True)
    for _batch in loader:
        state = loader.state_dict()
    assert state["epoch"] == 1
    resumed = make(shuffle=True)
    resumed.load_state_dict(state)
    assert tags(resumed) == tags(loader)


# As version 0.1.0 wrote it, for `SPEC` and 40 graphs that are not shuffled.
OLD_STATE = {
    "epoch": 1,
    "done": 3,
    "identity": {
        "sizes": "4d4a6fbb1f1866fe",
        "slots": {"nodes": 20, "edges": 24, "graphs": 6},
        "strategy": "packed",
        "batch_size": None,
        "seed": None,
        "oversize": "error",
        "algorithm": "best_fit",
        "num_processes": 1,
        "packs_per_batch": 1,
        "trim_seed": None,
    },
}


def test_a_state_that_was_written_before_is_taken_up(make):
    straight, resumed = make(), make()
    resumed.load_state_dict(OLD_STATE)
    now = resumed.state_dict()
    assert (now["epoch"], now["done"]) == (OLD_STATE["epoch"], OLD_STATE["done"])
    assert tags(resumed) == tags(itertools.islice(iter(straight), 3, None))
    assert resumed.epoch == 2


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"seed": 1}, "seed"),
        ({"shuffle": False}, "seed"),
        ({"spec": BatchSpec(22, 24, 6)}, "slots"),
        ({"world": 2}, "has 1 micro-batches .* here it would have 2"),
        ({"factor": 2}, "has 1 micro-batches .* here it would have 2"),
        ({"dataset": rich_graphs(NUM_GRAPHS - 1)}, "sizes"),
    ],
)
def test_a_state_of_another_loader_is_refused(make, other, name):
    state = make(shuffle=True).state_dict()
    with pytest.raises(LoaderError, match=name):
        make(**{"shuffle": True, **other}).load_state_dict(state)


def test_a_padded_batch_holds_a_fixed_number(make, store):
    loader = make("auto", strategy="padded", batch_size=3)
    most = {axis: int(sizes.max()) for axis, sizes in store.sizes.items()}
    assert loader.spec == BatchSpec(3 * most["nodes"] + 1, 3 * most["edges"] + 1, 4)
    assert [int(batch.graph_mask.sum()) for batch in loader] == [3] * 13 + [1]


@pytest.mark.parametrize("target", [{"num_nodes": 40}, {"batch_size": 8}])
def test_sizes_can_be_chosen_automatically(make, target):
    loader = make("auto", **target)
    assert sorted(tags(loader)) == list(range(NUM_GRAPHS))
    assert loader.plan.efficiency["nodes"] > 0.7


def test_heterogeneous_graphs(make):
    graphs = two_type_graphs(20)
    loader = make("auto", dataset=graphs, num_nodes=30, shuffle=True)
    assert sorted(v for b in loader for v in b.y[b.graph_mask].tolist()) == list(range(20))
    loader = make("auto", dataset=graphs, strategy="padded", batch_size=3, factor=2)
    assert sorted(v for b in loader for v in b.y[b.graph_mask].tolist()) == list(range(20))


@pytest.fixture(scope="module")
def with_giant():
    """A graph in the middle that is larger than a batch."""
    graphs = rich_graphs(NUM_GRAPHS)
    graphs[17] = rich_graph(17, 70, 50)
    return GraphStore.from_dataset(graphs, progress=False)


def test_a_giant_is_an_error_that_names_it(make, with_giant):
    with pytest.raises(BatchTooLarge, match="graph 17 has 70 nodes and 50 edges"):
        make(dataset=with_giant)


@pytest.mark.parametrize("strategy", ["packed", "padded"])
def test_a_giant_can_be_skipped(make, with_giant, strategy):
    more = {"batch_size": 2} if strategy == "padded" else {}
    with pytest.warns(UserWarning, match="1 of 40 graphs .* the first is graph 17 with 70 nodes"):
        loader = make(dataset=with_giant, oversize="skip", strategy=strategy, shuffle=True, **more)
    for _ in range(2):  # one warning is enough
        assert Counter(tags(loader)) == Counter(set(range(NUM_GRAPHS)) - {17})
    assert loader.plan.skipped.tolist() == [17]


@pytest.mark.parametrize("strategy", ["packed", "padded"])
def test_a_loader_that_would_skip_every_graph_is_refused(make, strategy):
    with (
        pytest.warns(UserWarning, match="40 of 40 graphs"),
        pytest.raises(BatchTooLarge, match=r"no graph fits a batch of .*; raise the sizes"),
    ):
        make(BatchSpec(2, 2, 3), oversize="skip", strategy=strategy)


@pytest.mark.parametrize("world", [1, 2])
def test_a_giant_can_be_trimmed(make, with_giant, world):
    ranks = [
        make(dataset=with_giant, oversize="trim", shuffle=True, world=world, rank=rank)
        for rank in range(world)
    ]
    cuts = []
    for _ in range(2):
        batches = [batch for loader in ranks for batch in loader]
        assert Counter(tags(batches)) == Counter(range(NUM_GRAPHS))
        (batch,) = (b for b in batches if 17 in b.tag[b.graph_mask].tolist())
        graph = batch[batch.tag.tolist().index(17)]
        assert graph.num_nodes == 19
        cuts.append(graph.x)
    assert not torch.equal(*cuts)  # another part of it in each epoch


def test_padded_batches_that_do_not_fit(make):
    with pytest.raises(BatchTooLarge, match=r"5 graphs can have \d+ nodes.*strategy='packed'"):
        make(BatchSpec(20, 24, 6), strategy="padded", batch_size=5)


@pytest.mark.parametrize(
    ("spec", "kwargs", "message"),
    [
        ("auto", {}, "pass num_nodes= or batch_size="),
        ("auto", {"num_nodes": 9, "batch_size": 2}, "pass num_nodes= or batch_size="),
        ("auto", {"num_nodes": 0}, "must be at least 1"),
        ("auto", {"strategy": "padded", "num_nodes": 10}, "chosen by batch_size="),
        ("large", {"num_nodes": 10}, "BatchSpec or 'auto', got 'large'"),
        (SPEC, {"num_nodes": 10}, "spec already says"),
        (SPEC, {"strategy": "padded", "batch_size": 6}, "leaves no filler graph"),
        (SPEC, {"strategy": "random"}, "'packed', 'padded'; got 'random'"),
        (SPEC, {"oversize": "ignore"}, "'error', 'skip', 'trim'; got 'ignore'"),
        (SPEC, {"algorithm": "magic"}, "algorithm must be one of .*; got 'magic'"),
    ],
)
def test_arguments_that_make_no_sense(make, spec, kwargs, message):
    with pytest.raises(OptionsError, match=message):
        make(spec, **kwargs)


def test_an_unknown_mode(make):
    with pytest.raises(LoaderError, match="mode must be one of"):
        make(mode="async_rebatched")


def test_a_loader_prints_itself(make):
    assert "40 graphs in" in repr(make())
    assert "BatchSpec(num_nodes=20, num_edges=24, num_graphs=6)" in repr(make())


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
        FixedSizeLoader(store, SPEC, num_workers=1, mode="fast")


@pytest.mark.parametrize("arguments", [{"spec": SPEC}, {"strategy": "padded", "batch_size": 2}])
def test_an_empty_selection_is_refused(store, arguments):
    with pytest.raises(OptionsError, match="no graph to load"):
        FixedSizeLoader(store[[]], **arguments)

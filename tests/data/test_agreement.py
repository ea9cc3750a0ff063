"""Processes that train together compare what they are about to read, and never wait in vain."""

from __future__ import annotations

import json

import pytest
from launching import bare

COMMON = """
import itertools, json
import torch
from torch.utils.data import TensorDataset
from torchkiln.core import DistributedError, Options
from torchkiln.data import AsyncPrefetcher, DataLoader, _agreement
from torchkiln.distributed import start

def numbers(count):
    return TensorDataset(torch.arange(count))

world = start()
rank = world.rank
options = world.options(Options(random_seed=3, collective_timeout_s=20))
"""

SCRIPT = (
    COMMON
    + """
from torch_geometric.data import Data
from torchkiln.graphs import BatchSpec, FixedSizeClusterLoader, FixedSizeLoader

def graphs(count):
    edges = torch.zeros(2, 1, dtype=torch.int64)
    return [Data(x=torch.full((1 + i % 3, 1), i), edge_index=edges) for i in range(count)]

def ring(num_nodes):
    ends = torch.arange(num_nodes)
    return Data(x=ends[:, None], edge_index=torch.stack([ends, ends.roll(1)]))

def fixed(options, count=40, **more):
    return FixedSizeLoader(graphs(count), BatchSpec(5, 5, 3), options=options, **more)

def clusters(options, count=40, **more):
    return FixedSizeClusterLoader(ring(count), num_parts=8, options=options, **more)

num_comparisons = 0
original = _agreement.group_of

def counted(*arguments):
    global num_comparisons
    num_comparisons += 1
    return original(*arguments)

_agreement.group_of = counted
found = {}

def count(name, work):
    before = num_comparisons
    result = work()
    found[name] = [num_comparisons - before, result]

def read(loader, epochs=2):
    lengths = [sum(1 for _ in loader) for _ in range(epochs)]
    loader.terminate()
    return lengths

def resumed(make):
    first, second = make(), make()
    batches = iter(first)
    next(batches)
    next(batches)
    second.load_state_dict(first.state_dict())
    return [sum(1 for _ in second), sum(1 for _ in batches)]

def peeked(loader):
    batches = iter(loader)
    first = next(batches)
    return sum(1 for _ in itertools.chain([first], batches))

def unread(loader):
    for _ in range(3):
        iter(loader)
    return 0

def in_child(loader):
    prefetcher = AsyncPrefetcher(loader)
    length = sum(1 for _ in prefetcher)
    prefetcher.terminate()
    return length

count("fixed", lambda: read(fixed(options, shuffle=True)))
count("fixed with workers", lambda: read(fixed(options, num_workers=2)))
count("clusters", lambda: read(clusters(options)))
count("clusters with workers", lambda: read(clusters(options, mode="async", num_workers=1)))
for mode in ("sync", "async", "async_rebatched"):
    count(mode, lambda: read(DataLoader(options, numbers(40), 4, shuffle=True, mode=mode)))
count("torch's workers", lambda: read(DataLoader(options, numbers(40), 4, num_workers=2)))
count("resumed", lambda: resumed(lambda: fixed(options)))
count("peeked", lambda: [peeked(fixed(options)), peeked(DataLoader(options, numbers(40), 4))])
count("unread", lambda: [unread(fixed(options)), unread(DataLoader(options, numbers(40), 4))])
plain = DataLoader(options, numbers(40), 4)
count("in a child", lambda: [in_child(fixed(options)), in_child(plain)])
alone = options.replace(sync_gradients=False)
if rank == 0:  # nobody waits for anybody
    count("alone", lambda: [*read(fixed(alone), 1), *read(DataLoader(alone, numbers(40), 4), 1)])
not_same = {}

def refused(name, loader):
    try:
        for batch in loader:
            pass
    except DistributedError as error:
        not_same[name] = str(error)
    finally:
        loader.terminate()

refused("longer", fixed(options, 40 + 8 * rank))
refused("other graphs", FixedSizeLoader(
    graphs(41)[rank : 40 + rank], BatchSpec(5, 5, 3), options=options))
refused("other seed", fixed(options, shuffle=True, seed=rank))
other_epoch = fixed(options, shuffle=True)
other_epoch.set_epoch(4 * rank)
refused("other epoch", other_epoch)
other_place = fixed(options)
other_place.load_state_dict({**other_place.state_dict(), "done": 2 * rank})
refused("other place", other_place)
refused("longer ring", clusters(options, 40 + 10 * rank))
for mode in ("sync", "async"):
    refused(f"more elements {mode}", DataLoader(options, numbers(40 + 8 * rank), 4, mode=mode))
refused("leftover elements", DataLoader(options, numbers(40 + rank), 4))
other_seed = options.replace(random_seed=rank)
refused("other random_seed", DataLoader(other_seed, numbers(40), 4, shuffle=True))
for mode in ("sync", "async"):
    one_ahead = DataLoader(options, numbers(40), 4, shuffle=True, mode=mode)
    one_ahead.set_epoch(rank)
    refused(f"one epoch ahead {mode}", one_ahead)
refused("both first", DataLoader(options.replace(process_id=0), numbers(40), 4))
refused("too many processes", DataLoader(options.replace(num_processes=3), numbers(60), 4))
own = DataLoader(options, numbers(40 + 8 * rank), 4, auto_distributed_partitioning=False)
refused("of ones own", own)
blocks = DataLoader(options, numbers(41), 1, drop_last=False, contiguous_blocks=True)
refused("blocks for inference", blocks)
print(json.dumps({"agreed": found, "refused": not_same}))
"""
)


@pytest.fixture(scope="module")
def told():
    """What both ranks found out; one launch for all, since it takes seconds."""
    first, second = (json.loads(outcome.ok().stdout) for outcome in bare(SCRIPT))
    alone = first["agreed"].pop("alone")
    assert first == second
    return {**first, "alone": alone}


def test_every_pass_is_compared_once(told):
    agreed = told["agreed"]
    assert {name: times for name, (times, _) in agreed.items()} == {
        "fixed": 2,
        "fixed with workers": 2,
        "clusters": 2,
        "clusters with workers": 2,
        "sync": 2,
        "async": 2,
        "async_rebatched": 2,
        "torch's workers": 2,
        "resumed": 2,
        "peeked": 2,
        "unread": 0,
        "in a child": 0,
    }
    assert agreed["sync"][1] == [5, 5]
    length = agreed["fixed with workers"][1][0]
    assert agreed["resumed"][1] == [length - 2, length - 2]


def test_a_loader_for_one_rank_waits_for_nobody(told):
    num_comparisons, lengths = told["alone"]
    assert num_comparisons == 0
    assert lengths[1] == 5


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("longer", "number of batches is 10 on rank 0, 12 on rank 1; sizes is "),
        ("other graphs", "sizes is "),
        ("other seed", "seed is 0 on rank 0, 1 on rank 1"),
        ("other epoch", "epoch is 0 on rank 0, 4 on rank 1"),
        ("other place", "batches done is 0 on rank 0, 2 on rank 1"),
        ("longer ring", "on rank 0"),
        ("more elements sync", "number of batches is 5 on rank 0, 6 on rank 1"),
        ("more elements async", "number of batches is 5 on rank 0, 6 on rank 1"),
        ("leftover elements", "number of elements is 40 on rank 0, 41 on rank 1"),
        ("other random_seed", "random_seed is 0 on rank 0, 1 on rank 1"),
        ("one epoch ahead sync", "epoch is 0 on rank 0, 1 on rank 1"),
        ("one epoch ahead async", "epoch is 0 on rank 0, 1 on rank 1"),
        ("both first", "process_id is 'that of its rank' on rank 0, 0 on rank 1"),
        ("too many processes", "num_processes=3, but 2 processes were started"),
        ("of ones own", "number of batches is 10 on rank 0, 12 on rank 1"),
    ],
)
def test_what_differs_is_refused_by_all_ranks_with_the_values_of_each(told, case, words):
    assert words in told["refused"][case]


def test_shares_for_inference_may_differ_by_a_batch(told):
    assert "blocks for inference" not in told["refused"]


ENDS = (
    COMMON
    + """
for batch in DataLoader(options, numbers(40 + 8 * rank), 4, num_workers=1):
    print("trained")
"""
)


def test_a_longer_dataset_on_one_rank_ends_all_of_them_with_the_same_error():
    outcomes = bare(ENDS)
    messages = [
        outcome.stderr.strip().splitlines()[-1].removeprefix(f"[rank{rank}]: ")
        for rank, outcome in enumerate(outcomes)
    ]
    assert messages[0] == messages[1]
    assert "number of batches is 5 on rank 0, 6 on rank 1" in messages[0]
    assert "give all of them the same data" in messages[0]
    for outcome in outcomes:
        assert outcome.returncode == 1
        assert "trained" not in outcome.stdout
        assert outcome.seconds < 30


@pytest.mark.slow  # three processes on two cores
def test_three_ranks_say_who_has_what():
    for outcome in bare(ENDS, ranks=3):
        last = outcome.stderr.strip().splitlines()[-1]
        assert "number of batches is 3 on rank 0, 4 on ranks 1 and 2" in last


LEFT_ALONE = (
    COMMON
    + """
loader = DataLoader(options, numbers(40), 4)
for epoch in range(2 - rank):
    for batch in loader:
        pass
"""
)


def test_a_rank_that_begins_an_epoch_alone_does_not_wait_for_ever():
    first, second = bare(LEFT_ALONE)
    second.ok()
    assert first.returncode == 1
    assert "rank 1" in first.stderr.strip().splitlines()[-1]

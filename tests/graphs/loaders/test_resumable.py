import functools
import json
import os
import signal

import pytest
import torch

from torchkiln.core import TorchkilnError, WorkerError
from torchkiln.data import AsyncPrefetcher, LoaderError, LoaderMode, PrefetchError
from torchkiln.graphs.loaders._resumable import ResumableLoader

# What the state of a loader for one process and one mini-batch a call says about itself.
IDENTITY = {"seed": 1, "micro_batches_per_update": 1, "updates_per_call": 1}


def make(item):
    return torch.tensor(item)


def plan(epoch):
    return [(epoch, number) for number in range(4 + epoch % 2)]


def loader(make=make, **arguments):
    return ResumableLoader(plan, make, **{"identity": {"seed": 1}, **arguments})


def numbers(batches):
    return [tuple(batch.tolist()) for batch in batches]


MODES = [
    {},
    {"num_workers": 2},
    {"mode": "async"},
    {"mode": "async", "num_workers": 1},
]
names = [" ".join(f"{k}={v}" for k, v in mode.items()) or "sync" for mode in MODES]


@pytest.fixture(params=MODES, ids=names)
def loaders(request):
    """Make loaders of one kind, and end their processes."""
    made = []

    def start(**arguments):
        made.append(loader(**request.param, **arguments))
        return made[-1]

    yield start
    for one in made:
        one.terminate()


def test_each_iterator_is_an_epoch(loaders):
    it = loaders()
    assert len(it) == 4
    assert numbers(it) == [(0, i) for i in range(4)]
    assert (it.epoch, len(it)) == (1, 5)
    assert numbers(it) == [(1, i) for i in range(5)]
    it.set_epoch(7)
    assert numbers(it) == [(7, i) for i in range(5)]


@pytest.mark.parametrize("done", [1, 4])
def test_a_resumed_loader_goes_on_where_the_other_was(loaders, done):
    first = loaders()
    batches = iter(first)
    for _ in range(done):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    first.terminate()
    second = loaders()
    second.load_state_dict(state)
    expected = [(0, i) for i in range(done, 4)] or [(1, i) for i in range(5)]
    assert numbers(second) == expected
    assert numbers(second)[0] == (expected[0][0] + 1, 0)


def test_a_resumed_epoch_is_whole_again_the_next_time(loaders):
    it = loaders()
    it.load_state_dict({"epoch": 2, "done": 3, "identity": IDENTITY})
    assert numbers(it) == [(2, 3)]
    it.set_epoch(2)
    assert numbers(it) == [(2, i) for i in range(4)]


def test_an_iterator_that_was_left_counts_as_an_epoch():
    it = loader()
    for _ in it:
        break
    assert it.state_dict()["epoch"] == 0
    assert it.state_dict()["done"] == 1
    assert numbers(it)[0] == (1, 0)


def test_an_iterator_that_is_never_advanced_does_not_count():
    it = loader()
    iter(it)
    assert it.epoch == 0


def test_state_after_an_epoch_is_the_next_one():
    it = loader()
    list(it)
    assert it.state_dict() == {"epoch": 1, "done": 0, "identity": IDENTITY}


def test_loading_leaves_the_global_generator_alone(loaders):
    before = torch.get_rng_state()
    list(loaders())
    assert torch.equal(before, torch.get_rng_state())


def test_a_foreign_state_is_refused():
    with pytest.raises(LoaderError, match=r"seed=2, this one has 1"):
        loader().load_state_dict({"epoch": 0, "done": 0, "identity": {"seed": 2}})
    with pytest.raises(LoaderError, match=r"spec=None, this one has 3"):
        loader(identity={"spec": 3}).load_state_dict({"epoch": 0, "done": 0, "identity": {}})


def test_refused_modes():
    with pytest.raises(LoaderError, match="'async_rebatched'"):
        loader(mode="async_rebatched")
    with pytest.raises(LoaderError, match="no meaning in mode sync"):
        loader(async_options={"buffer_size": 2})


def test_a_loader_that_loads_ahead_is_no_source_of_another_prefetcher(loaders):
    it = loaders()
    next(iter(it))
    if it.mode is LoaderMode.ASYNC:
        with pytest.raises(PrefetchError, match="loads asynchronously already"):
            AsyncPrefetcher(it)


def stop_at_two(item):
    if item == (0, 2):
        raise StopIteration
    return torch.tensor(item)


def test_stop_iteration_of_a_batch_does_not_end_the_epoch(loaders):
    it = loaders(make=stop_at_two)
    batches = iter(it)
    assert numbers(next(batches) for _ in range(2)) == [(0, 0), (0, 1)]
    with pytest.raises(TorchkilnError, match=r"stop_at_two .* raised StopIteration"):
        next(batches)
    assert it.state_dict()["done"] == 2


def kill_once(armed, item):
    if item == (0, 2) and armed[0]:
        armed[0] = 0
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.tensor(item)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's handler
def test_the_epoch_after_a_kill_is_whole(loaders):
    armed = torch.ones(1, dtype=torch.int64).share_memory_()
    it = loaders(make=functools.partial(kill_once, armed))
    if it.mode is LoaderMode.SYNC and not it._num_workers:
        armed[0] = 0  # nobody but the program itself could be killed
        assert len(numbers(it)) == 4
    else:
        # torch's own words, where its handler of SIGCHLD was faster than we are.
        with pytest.raises(WorkerError, match=r"SIGKILL|killed by signal: Killed"):
            numbers(it)
    assert numbers(it) == [(1, i) for i in range(5)]

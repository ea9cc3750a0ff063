"""What processes settle with each other, told by two that are threads of this one."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from torch import nn

from torchkiln import Options
from torchkiln.core import CheckpointError, OptionsError, StoreError
from torchkiln.datasets.molecules._targets import UnknownTarget
from torchkiln.distributed import World
from torchkiln.training._buffers import RankBuffers, average_of, differing
from torchkiln.training._common_errors import common_of
from torchkiln.training._exit_codes import run_command
from torchkiln.training._interrupt import Interrupted
from torchkiln.training._rank_states import RankState, from_checkpoint, to_checkpoint
from torchkiln.training._ranks import Ranks
from torchkiln.training._stopping import Stopping


class Talk:
    """What two threads tell each other."""

    def __init__(self):
        self.barrier = threading.Barrier(2)
        self.values = [None, None]


class FakeGroup:
    """A group of two, each in a thread."""

    def __init__(self, rank, talk):
        self._rank, self._talk = rank, talk
        self.seconds, self.place = 0.0, "start"

    def gather(self, value):
        self._talk.values[self._rank] = value
        self._talk.barrier.wait(10)
        values = list(self._talk.values)
        self._talk.barrier.wait(10)
        return values

    def from_first(self, value):
        return self.gather(value)[0]

    def meet(self, what):
        self.gather(what)

    def one_after_first(self, what, work):
        return work()


def in_two_ranks(work):
    """Return what `work(ranks)` returned or raised in each of two ranks."""
    talk, found = Talk(), [None, None]

    def run(rank):
        ranks = Ranks()
        ranks._world, ranks._group = World(rank, 2, rank, 2), FakeGroup(rank, talk)
        try:
            found[rank] = work(ranks)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_a_process_alone_does_everything_itself():
    ranks = Ranks()
    assert (ranks.rank, ranks.size, ranks.is_first) == (0, 1, True)
    assert ranks.first_does("work", lambda: 7) == ranks.all_do("work", lambda: 7) == 7
    assert ranks.each_host_once("work", lambda: 7) == 7
    assert ranks.gather(3) == [3]
    with ranks.first_enters("enter", lambda: contextlib.nullcontext(5)) as entered:
        assert entered == 5
    error = ValueError("own")
    assert common_of(ranks.common(error)) is None


def test_options_of_other_processes_are_refused_with_the_remedy():
    with pytest.raises(OptionsError, match=r"rank 0 of 1 processes.*start\(\)\.options\(options\)"):
        Ranks.of(Options(num_processes=2))
    assert Ranks.of(Options(num_processes=2, sync_gradients=False)).size == 1


def test_rank_0_works_for_all():
    done = []

    def work(ranks):
        return ranks.first_does("work", lambda: done.append(ranks.rank) or "result")

    assert in_two_ranks(work) == ["result", "result"]
    assert done == [0]


def test_an_error_of_rank_0_is_raised_by_all_and_told_by_one():
    def fail():
        raise CheckpointError("there is one already")

    first, second = in_two_ranks(lambda ranks: ranks.first_does("look", fail))
    assert type(first) is type(second) is CheckpointError
    assert str(first) == str(second) == "there is one already"
    assert common_of(first).speaks
    assert not common_of(second).speaks


def test_an_error_of_another_rank_is_told_by_rank_0_with_its_number():
    def work(ranks):
        def fail():
            if ranks.rank == 1:
                raise StoreError("no such file")

        return ranks.all_do("load", fail)

    first, second = in_two_ranks(work)
    assert isinstance(first, StoreError)
    assert str(first) == "rank 1: no such file"
    assert str(second) == "no such file"
    assert common_of(first).speaks
    assert not common_of(second).speaks


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (UnknownTarget("no such target", ("a", "b")), OptionsError, "no such target"),
        (FileNotFoundError(2, "gone"), FileNotFoundError, "FileNotFoundError: [Errno 2] gone"),
    ],
)
def test_errors_of_any_kind_reach_the_others(error, kind, text):
    def fail():
        raise error

    first, second = in_two_ranks(lambda ranks: ranks.first_does("work", fail))
    assert first is error
    assert isinstance(second, kind)
    assert text in str(second)


def test_commands_print_an_error_that_all_have_once(capsys):
    errors = in_two_ranks(
        lambda ranks: ranks.first_does("work", lambda: Options(device_iterations=0))
    )
    assert all(isinstance(error, OptionsError) for error in errors)

    def command(ranks):
        def fail():
            raise ranks.common(OptionsError("wrong"))

        return run_command(fail, "prog", "")

    assert in_two_ranks(command) == [2, 2]
    assert capsys.readouterr().err.count("prog: wrong") == 1


def test_work_is_shared_and_given_up_by_all():
    def share(ranks):
        stopping = Stopping(ranks)
        stopping.guard.requested = ranks.rank == gives_up

        def work(check):
            check()
            return ranks.rank

        return stopping.share("work", work)

    gives_up = None
    assert in_two_ranks(share) == [[0, 1], [0, 1]]
    gives_up = 1
    assert [type(error) for error in in_two_ranks(share)] == [Interrupted, Interrupted]


def test_a_signal_never_lets_one_of_several_leave_alone():
    def look(ranks):
        stopping = Stopping(ranks)
        stopping.guard.requested = True
        stopping.check_after_step(is_wanted_by_any=False)
        with pytest.raises(ValueError, match="worker"), stopping.excusing():
            raise ValueError("a worker failed")
        with pytest.raises(Interrupted):
            stopping.check_after_step(is_wanted_by_any=True)

    assert in_two_ranks(look) == [None, None]


def test_buffers_are_averaged_for_a_while_and_for_good():
    def train(ranks):
        module = nn.BatchNorm1d(2)
        module.running_mean.fill_(1.0 + ranks.rank)
        module.num_batches_tracked.fill_(7)
        buffers = RankBuffers(ranks, {"module": module})
        found = []
        with buffers.averaged():
            found.append(module.running_mean.tolist())
        found.append(module.running_mean.tolist())
        buffers.settle()
        return [*found, module.running_mean.tolist(), int(module.num_batches_tracked)]

    first, second = in_two_ranks(train)
    assert first == [[1.5, 1.5], [1.0, 1.0], [1.5, 1.5], 7]
    assert second == [[1.5, 1.5], [2.0, 2.0], [1.5, 1.5], 7]


def test_equal_buffers_keep_their_bits_and_are_not_kept_by_rank():
    value = torch.tensor([0.1, 1e-30], dtype=torch.float64)
    by_rank = [{"same": value.clone(), "other": value + rank} for rank in range(3)]
    assert torch.equal(average_of(by_rank)["same"], value)
    assert [list(one) for one in differing(by_rank)] == [["other"]] * 3


def state_of(rank):
    generator = torch.Generator().manual_seed(rank)
    return RankState(
        random={"cpu": generator.get_state()},
        loader={"epoch": 1, "done": 2, "last_batch": f"digest {rank}"},
        loader_tensors={"seed": torch.tensor([rank])},
        buffers={"module/mean": torch.tensor([float(rank)])},
    )


def test_each_rank_gets_its_own_state_back():
    tensors, facts = to_checkpoint([state_of(rank) for rank in range(2)])
    for rank in range(2):
        again, own = from_checkpoint(tensors, facts, rank, 2), state_of(rank)
        assert torch.equal(again.random["cpu"], own.random["cpu"])
        assert again.loader == own.loader
        assert torch.equal(again.loader_tensors["seed"], own.loader_tensors["seed"])
        assert torch.equal(again.buffers["module/mean"], own.buffers["module/mean"])


def test_further_ranks_draw_new_numbers_and_all_begin_with_averaged_buffers():
    tensors, facts = to_checkpoint([state_of(rank) for rank in range(2)])
    states = [from_checkpoint(tensors, facts, rank, 4) for rank in range(4)]
    for rank in range(2):
        assert torch.equal(states[rank].random["cpu"], state_of(rank).random["cpu"])
    drawn = {state.random["cpu"].numpy().tobytes() for state in states}
    assert len(drawn) == 4
    assert all(state.loader["done"] == 2 for state in states)
    assert all(state.loader["last_batch"] is None for state in states)
    assert all(not state.buffers for state in states)


def test_one_process_keeps_what_earlier_versions_kept():
    tensors, facts = to_checkpoint([state_of(0)])
    assert set(tensors) == {"random/cpu", "loader/seed"}
    assert set(facts) == {"loader"}

"""What a group does while all is well; started with any number of ranks."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from torchkiln.core import DistributedError
from torchkiln.distributed import Group, World, current, group_of, start
from torchkiln.torch_internals._distributed import default_store, store_address


def check_world(world: World) -> None:
    assert start() is world
    assert current() is world
    options = world.options()
    assert (options.num_processes, options.process_id) == (world.size, world.rank)
    assert options.synchronizes
    # torchrun's own default of one thread does not count: ranks divide the cores.
    assert world.local_size == world.size
    address = store_address()
    assert address is not None
    assert address[1] > 0
    second = default_store().clone()
    second.set("seen through another connection", "yes")
    assert default_store().get("seen through another connection") == b"yes"


def check_sums(group: Group) -> None:
    rank, size = group.world.rank, group.world.size
    generator = torch.Generator().manual_seed(7)
    summands = (
        torch.randn(size, 6 * size, generator=generator) * 10.0 ** torch.arange(size)[:, None]
    )
    expected = summands[0].clone()
    for other in summands[1:]:
        expected += other
    for order, is_exact in (("folded", True), ("fastest", size <= 2)):
        flat = summands[rank].clone()
        group.sum_(flat, order)
        assert not is_exact or torch.equal(flat, expected), (order, flat, expected)
        torch.testing.assert_close(flat, expected)
        others = group.gather(flat)
        assert all(torch.equal(flat, other) for other in others)
    assert group.seconds > 0
    if size > 2:
        with pytest.raises(ValueError, match=f"multiple of {size} elements, got {size + 1}"):
            group.sum_(torch.zeros(size + 1))


def check_parts(group: Group) -> None:
    """Of a sum that is divided each rank has a part, and parts of all are gathered."""
    rank, size = group.world.rank, group.world.size
    # More than one message holds, and no multiple of it.
    for length, dtype in [(3, torch.bfloat16), (2**18 + 2**17 + 1, torch.float32)]:
        rows = torch.randn(size, size * length, generator=torch.Generator().manual_seed(1))
        rows = rows.to(dtype)
        expected = rows[0].clone()
        for row in rows[1:]:
            expected += row
        flat = rows[rank].clone()
        group.sum_own_part_(flat)
        own = slice(rank * length, (rank + 1) * length)
        assert torch.equal(flat[own], expected[own])
        found = torch.zeros(size, length, dtype=dtype)
        for begin, pieces in group.gather_parts(flat[own]):
            found[:, begin : begin + pieces.shape[1]] = pieces
        assert torch.equal(found.view(-1), expected)
    with pytest.raises(ValueError, match=f"multiple of {size}"):
        group.sum_own_part_(torch.zeros(size + 1))


def check_forks(group: Group) -> None:
    """A forked child has let go of the connections, and would wait for ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
        child = os.fork()
    if child == 0:
        told = ""
        try:
            group.gather(1)
        except DistributedError as error:
            told = str(error)
        os._exit(7 if f"was forked from rank {group.world.rank} and is none" in told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def check_values(group: Group) -> None:
    rank, size = group.world.rank, group.world.size
    assert group.gather({"rank": rank}) == [{"rank": other} for other in range(size)]
    assert group.from_first(f"said by {rank}") == "said by 0"
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, rank + 0.5)
    flag, count = torch.tensor([rank == 0]), torch.tensor(rank + 40)
    group.broadcast_([*model.parameters(), flag, count])
    assert (model.weight == 0.5).all()
    assert flag.item()
    assert count.item() == 40
    with pytest.raises(DistributedError, match="tensors must be the same on all ranks"):
        group.broadcast_([torch.zeros(3 + rank)])


def check_messages(group: Group) -> None:
    rank, size = group.world.rank, group.world.size
    after, before = (rank + 1) % size, (rank - 1) % size
    # Everybody sends before anybody receives, far more than connections hold.
    image = torch.arange(2 * 4 * 300 * 300.0).view(2, 4, 300, 300) + rank
    image = image.contiguous(memory_format=torch.channels_last)
    sent = [group.send(image, after, 3), group.send(torch.tensor(rank), after, 4)]
    sent += [group.send(torch.full((5,), turn + 10 * rank), after, 5) for turn in range(3)]
    sent.append(group.send(torch.empty(0, 7), after, 6))
    # Other tags in another order; those of one tag in theirs.
    found = [group.receive(torch.zeros(5, dtype=torch.int64), before, 5) for _ in range(3)]
    assert [int(one.wait()[0]) for one in found] == [turn + 10 * before for turn in range(3)]
    assert int(group.receive(torch.tensor(-1), before, 4).wait()) == before
    assert torch.equal(
        group.receive(torch.empty_like(image), before, 3).wait(), image - rank + before
    )
    group.receive(torch.empty(0, 7), before, 6).wait()
    assert [one.wait() is one.tensor for one in sent] == [True] * 6
    with pytest.raises(ValueError, match="send a copy"):
        group.send(torch.zeros(4, 4)[:, :2], after, 7)
    with pytest.raises(ValueError, match="send a copy"):
        group.receive(torch.zeros(1).expand(3), before, 7)


def check_some_ranks(group: Group) -> None:
    rank, size = group.world.rank, group.world.size
    parts = [range(0, size, 2), range(1, size, 2)]
    part = group.divided(parts)
    own = list(parts[rank % 2])
    assert (part.world.rank, part.world.size) == (own.index(rank), len(own))
    flat = torch.full((4 * len(own),), float(10**rank))
    part.sum_(flat)
    assert flat.tolist() == [sum(10.0**other for other in own)] * len(flat)
    assert group.divided(parts) is part
    part.place = "update 3"
    assert group.place == "update 3"
    group.place = "start"


def check_agreement(group: Group) -> None:
    rank = group.world.rank
    group.require_same("options", {"lr": 0.1}, "set them")
    with pytest.raises(DistributedError) as caught:
        group.require_same("options", {"lr": 0.1 * (rank + 1), "wd": 0}, "use one file")
    text = str(caught.value)
    assert text.startswith(
        "options must be the same on all ranks: lr is 0.1 on rank 0, 0.2 on rank"
    )
    assert text.endswith("; use one file")
    group.gather("it still works")


def check_waiting(group: Group, folder: Path) -> None:
    rank = group.world.rank
    before = group.seconds
    for turn in range(4):
        (folder / f"{turn}.{rank}").touch()
        time.sleep(0.1 * (rank == turn % group.world.size))
        group.meet(f"turn {turn}")
        assert len(list(folder.glob(f"{turn}.*"))) == group.world.size
    assert group.seconds == before  # it is not time in collectives
    result = group.one_after_first("compile", lambda: compile_into(folder / "cache", rank))
    assert result == (rank != 0), "others find what the first one left"


def compile_into(path: Path, rank: int) -> bool:
    was_there = path.exists()
    time.sleep(0.3 * (rank == 0))
    path.touch()
    return was_there


def check_failed_work(group: Group) -> None:
    rank = group.world.rank
    with pytest.raises(OSError if rank == 0 else DistributedError) as caught:
        group.one_after_first("compile", lambda: fail("no compiler") if rank == 0 else None)
    assert "no compiler" in str(caught.value)
    last = group.world.size - 1
    with pytest.raises(OSError if rank == last else DistributedError) as caught:
        group.one_after_first("load", lambda: fail("no memory") if rank == last else None)
    if rank != last:
        assert f"rank {last} (process " in str(caught.value)
        assert "failed at load: OSError: no memory" in str(caught.value)
    assert group.place == "start"
    group.meet("it still works")


def fail(text: str) -> None:
    raise OSError(text)


def check_a_second_group(world: World) -> None:
    second = group_of(world, 25)
    assert second is group_of(world, 25)
    assert second is not group_of(world, 30)
    assert second.gather(world.rank) == list(range(world.size))


def check_leaving_too_early() -> None:
    dist.destroy_process_group()
    assert current() is None
    with pytest.raises(DistributedError, match=r"has left the others .*leave that call out"):
        start(timeout_s=5)


def main() -> None:
    world = start(timeout_s=30)
    group = group_of(world, 30)
    check_world(world)
    check_sums(group)
    check_parts(group)
    check_values(group)
    check_forks(group)
    check_messages(group)
    check_some_ranks(group)
    check_agreement(group)
    check_waiting(group, Path(sys.argv[1]))
    check_failed_work(group)
    check_a_second_group(world)
    assert dist.is_initialized()
    group.meet("end")
    check_leaving_too_early()
    print(f"rank {world.rank} is done with {torch.get_num_threads()} threads", flush=True)


if __name__ == "__main__":
    main()

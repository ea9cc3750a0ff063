"""Children of every kind record into files of their own, and the whole is one time line."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
import torch
from _recorded import check_nesting, events_in, marks_in

from torchkiln import DataLoader, Options
from torchkiln.core import _trace as trace
from torchkiln.core import span
from torchkiln.profiling import record
from torchkiln.profiling.system._merge import find_runs


def work() -> None:
    with span("child", "work"):
        pass


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_record_into_files_of_their_own(tmp_path, method):
    with record(tmp_path), span("main", "outer"):
        child = multiprocessing.get_context(method).Process(target=work)
        child.start()
        child.join()
    timeline = check_nesting(tmp_path)
    assert [one.is_main for one in timeline.processes] == [True, False]
    assert all(one.has_ended for one in timeline.processes)
    assert marks_in(tmp_path) == [
        ("B", "main", "outer"),
        ("E", "main", "outer"),
        ("B", "child", "work"),
        ("E", "child", "work"),
    ]
    main, other = timeline.processes
    assert main.first_us < other.first_us < other.last_us < main.last_us  # one clock


def test_a_child_that_marks_nothing_leaves_no_file(tmp_path):
    with record(tmp_path), span("main", "outer"):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
        child.start()
        child.join()
    assert len(find_runs(tmp_path)[0].parts) == 1
    check_nesting(tmp_path)


def test_what_goes_on_in_the_parent_does_not_end_in_a_forked_child(tmp_path):
    with record(tmp_path), span("main", "outer"):
        pid = os.fork()
        if pid == 0:
            try:
                with span("child", "inner"):
                    pass
                outer = trace._tracers  # what follows is what leaving both blocks would do
                assert outer
                outer[0].stop()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    timeline = check_nesting(tmp_path)
    assert len(timeline.processes) == 2
    assert [mark[1] for mark in marks_in(tmp_path)] == ["main", "main", "child", "child"]


def test_a_loader_is_recorded_in_its_prefetching_child_and_its_workers(tmp_path):
    with record(tmp_path):
        loader = DataLoader(Options(), Numbers(), batch_size=2, mode="async", num_workers=1)
        batches = list(loader)
        loader.terminate()
    assert torch.cat(batches)[:, 0].tolist() == list(range(12))
    timeline = check_nesting(tmp_path)
    names = {one.pid: one.name for one in timeline.processes}
    assert sorted(names.values()) == ["main", "prefetch", "worker 0"]
    found = {(names[e["pid"]], e["name"]) for e in events_in(tmp_path) if e["ph"] in "BC"}
    assert {
        ("main", "wait for batch"),
        ("prefetch", "load batch"),
        ("prefetch", "send batch"),
        ("prefetch", "batches waiting"),
        ("worker 0", "__getitem__"),
        ("worker 0", "collate"),
    } <= found


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_every_way_to_start_a_prefetching_child_is_recorded(tmp_path, start_method):
    settings = {"start_method": start_method, "load_indefinitely": False}
    with record(tmp_path):
        loader = DataLoader(
            Options(), Numbers(), batch_size=2, mode="async", async_options=settings
        )
        assert len(list(loader)) == 6
        loader.terminate()
    timeline = check_nesting(tmp_path)
    assert [one.name for one in timeline.processes] == ["main", "prefetch"]
    loads = [mark for mark in marks_in(tmp_path) if mark[::2] == ("B", "dataset access")]
    assert len(loads) == 6


def test_a_child_stops_recording_when_the_block_ends(tmp_path, monkeypatch):
    with record(tmp_path):
        loader = DataLoader(Options(), Numbers(), batch_size=2, mode="async")
        iter(loader)
        next(iter(loader))
    part = find_runs(tmp_path)[0].parts[-1]
    deadline = time.monotonic() + 30
    while not part.read_bytes().endswith(b"]\n") and time.monotonic() < deadline:
        for _ in loader:
            time.sleep(0.05)
    assert part.read_bytes().endswith(b"]\n")
    size = part.stat().st_size
    for _ in loader:
        pass
    assert part.stat().st_size == size
    loader.terminate()


def test_loading_here_is_recorded(tmp_path):
    loader = DataLoader(Options(), Numbers(), batch_size=3)
    plain = list(loader)
    with record(tmp_path):
        recorded = list(loader)
    assert torch.equal(torch.cat(plain), torch.cat(recorded))
    begun = [label for kind, _, label in marks_in(tmp_path) if kind == "B"]
    assert begun == ["dataset access", "collate"] * 4

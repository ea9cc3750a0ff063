"""What a watch says of real processes, and who sees what."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _beacon_processes import BEGIN, SAY, SOURCE, WAIT, running

from torchkiln.core import _beacon_folder, _beacon_public
from torchkiln.core import _beacon_layout as layout
from torchkiln.core._process_identity import pid_namespace
from torchkiln.monitor import Watch, read_programs
from torchkiln.monitor._beacons import Reading
from torchkiln.monitor._watch import describe_process

S = 1_000_000_000
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(autouse=True)
def session(tmp_path, monkeypatch) -> Path:
    """Beacons of this test alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(_beacon_folder, "_SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(_beacon_folder, "_SESSIONS", tmp_path / "sessions")
    return tmp_path


def reading(at_ns: int, *, process: dict[str, object] | None = None, **slot: object) -> Reading:
    """Return what a beacon with one program says."""
    zeros = dict.fromkeys(("sequence", "since_ns", "calls", "steps", "executing_ns"), 0)
    zeros |= dict.fromkeys(("ended_ns", "interval_ns", "rank"), 0)
    facts = {"steps_per_call": 1, "num_ranks": 1, "number": 1, "state": layout.READY}
    texts = {"name": "step", "kind": "training", "backend": "capture", "source": "captured"}
    texts |= {"phase": "", "device": "cpu"}
    record = layout.SlotRecord(**{**zeros, **facts, **texts, **slot})  # type: ignore[arg-type]
    of_process = dict.fromkeys(layout.ProcessRecord.__slots__, 0) | (process or {})
    header = layout.Header(1, pid_namespace(), 1, 1, "train.py")
    return Reading(header, layout.ProcessRecord(**of_process), {0: record}, at_ns)  # type: ignore[arg-type]


def test_rates_and_shares_follow_from_two_readings():
    before = reading(
        100 * S,
        process={"samples": 1000, "trained_ns": 99 * S, "waiting_ns": S},
        steps=50,
        ended_ns=99 * S,
        executing_ns=10 * S,
    )
    now = reading(
        110 * S,
        process={
            "samples": 1640,
            "trained_ns": 109 * S,
            "waiting_ns": 2 * S,
            "loss": 0.5,
            "epoch": 1,
        },
        steps=70,
        ended_ns=109 * S,
        interval_ns=S // 2,
        executing_ns=16 * S,
    )
    status = describe_process(now, before, None)
    (program,) = status.programs
    assert program.steps_per_s == pytest.approx(2.0)
    assert program.executing_share == pytest.approx(0.6)
    assert status.waiting_share == pytest.approx(0.1)
    assert status.training is not None
    assert status.training.samples_per_s == pytest.approx(64.0)
    assert status.state == "running"


@pytest.mark.parametrize(
    ("slot", "process", "state"),
    [
        ({"state": layout.COMPILING, "phase": "capture", "since_ns": S}, {}, "compiling"),
        ({"since_ns": 100 * S}, {}, "running"),
        ({}, {"waiting_since_ns": 90 * S}, "waiting for data"),
        ({}, {}, "idle"),
        ({"ended_ns": 109 * S, "interval_ns": S}, {}, "running"),
        ({"ended_ns": 50 * S, "interval_ns": S}, {}, "idle"),
    ],
)
def test_states(slot, process, state):
    before = reading(100 * S)
    status = describe_process(reading(110 * S, process=process, **slot), before, None)
    assert status.state == state
    assert status.phase == slot.get("phase", "")


def test_another_program_in_the_slot_is_not_compared_with_the_one_before():
    before = reading(100 * S, steps=1000, ended_ns=99 * S, executing_ns=9 * S)
    now = reading(110 * S, number=2, steps=3, ended_ns=109 * S, executing_ns=S)
    (program,) = describe_process(now, before, None).programs
    assert program.steps_per_s is None
    assert program.executing_share is None


def test_a_process_is_told_in_full():
    with running() as process:
        status = read_programs(0.05)
        (found,) = status.processes
        assert found.pid == process.pid
        assert found.command == "python"
        assert found.seconds < 60
        assert found.resources is not None
        assert 0 < found.resources.memory_bytes <= (found.resources.peak_bytes or 0)
        assert found.resources.cpu_cores is not None
        (program,) = found.programs
        assert (program.calls, program.steps, program.source) == (3, 6, "captured")
        assert status.seconds is not None


def test_a_killed_program_is_gone_at_the_next_look():
    watch = Watch()
    with running() as process:
        assert len(watch.look().processes) == 1
        process.kill()
        process.wait()
        assert watch.look().processes == ()


def test_counts_between_two_looks_are_exact():
    """Steps that a loop made between two looks, and the time between their ends, give the rate."""
    loop = SAY + "for line in sys.stdin:\n    for _ in range(int(line)):\n        with program: "
    loop += "time.sleep(0.002)\n    print(flush=True)\n"
    with running(loop) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watch = Watch()
        (first,) = watch.look().processes
        process.stdin.write("25\n")
        process.stdin.flush()
        process.stdout.readline()
        (second,) = watch.look().processes
    before, after = first.programs[0], second.programs[0]
    assert after.steps - before.steps == 50
    assert after.steps_per_s is not None
    assert 0 < after.steps_per_s <= 2 / 0.002  # two steps a call, no call faster than its sleep


def test_a_stopped_process_is_told():
    with running() as process:
        os.kill(process.pid, 19)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        (found,) = read_programs(0.0).processes
        assert found.state == "stopped"


@needs_root
def test_users_do_not_see_into_each_others_folders(session):
    session.chmod(0o755)
    with running():
        folder = session / "torchkiln"
        assert len(list(folder.iterdir())) == 1
        before = "from torchkiln.core import _beacon_folder\nfrom torchkiln.monitor import Watch\n"
        code = (
            "import os\n" + before + "os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
            "assert os.geteuid() == 54321\n"
            "status = Watch().look()\n"
            "assert status.processes == (), status\n"
            "assert status.others == (), status\n"
            f"try:\n    os.listdir({str(folder)!r})\n"
            "except PermissionError:\n    print('closed')\n"
        )
        done = _run(code)
        assert done.stdout == "closed\n", done.stderr


@needs_root
def test_another_users_session_is_not_used(session):
    """As after `su`: the variable is that of the user before."""
    session.chmod(0o777)
    code = (
        "import os\nfrom torchkiln.core._beacon_folder import folders\n"
        "os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
        "print(*folders())\n"
    )
    assert _run(code).stdout == "/dev/shm/torchkiln-54321\n"


@needs_root
def test_a_folder_of_somebody_else_is_not_used(tmp_path, session):
    folder = session / "torchkiln"
    folder.mkdir()
    os.chown(folder, 54321, 54321)
    with pytest.raises(PermissionError), _beacon_folder.private_beacon_folder(folder, make=True):
        pass
    with running():
        assert list(folder.iterdir()) == []


@needs_root
def test_those_who_want_are_seen_by_all_with_pid_and_time_only():
    change = "import os\nos.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
    code = "import os\nfrom torchkiln.core import _beacon, _beacon_page\n" + change + BEGIN + WAIT
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TORCHKILN_BEACON": "shared"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        watch = Watch()
        (other,) = [one for one in watch.look().others if one.pid == process.pid]
        assert other.user == "54321"
        assert 0 <= other.seconds < 60
        assert watch.look().processes == ()
        (path,) = [
            path
            for path in Path("/dev/shm").glob("torchkiln-public-*")
            if path.stat().st_uid == 54321
        ]
        assert path.stat().st_size == _beacon_public._LINE.size
        process.kill()
        process.wait()
        assert process.pid not in [one.pid for one in watch.look().others]
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        for path in Path("/dev/shm").glob("torchkiln-public-*"):
            if path.stat().st_uid == 54321:
                path.unlink()
        folder = Path("/dev/shm/torchkiln-54321")
        for file in folder.glob("*"):
            file.unlink()
        folder.rmdir()


def test_without_the_wish_nothing_is_public():
    before = set(Path("/dev/shm").glob("torchkiln-public-*"))
    with running():
        assert set(Path("/dev/shm").glob("torchkiln-public-*")) <= before
    with running(TORCHKILN_BEACON="shared") as process:
        (path,) = set(Path("/dev/shm").glob("torchkiln-public-*")) - before
        assert b"python" not in path.read_bytes()
        assert [line.pid for line in _beacon_public.read_public_lines()].count(process.pid) == 1
    assert process.pid not in [line.pid for line in _beacon_public.read_public_lines()]
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"TKPUBLIC", bytes(40), b"\xff" * 40, b"x" * 4000])
def test_nonsense_in_the_public_place_is_ignored(content):
    path = Path(f"/dev/shm/torchkiln-public-test{os.getpid()}-{time.monotonic_ns()}")
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        _beacon_public.read_public_lines()
    _beacon_public.read_public_lines()
    assert not path.exists()


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
    )

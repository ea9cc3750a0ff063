"""Start programs as several processes, under a time limit, and leave none of them behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SOURCE = Path(__file__).parents[2] / "src"
# Every process inherits it, whatever session or group it puts itself into.
_MARK = "LAUNCHED_BY_TEST"
# Variables of a launcher that the tests themselves may have been started with.
_FOREIGN = re.compile(
    r"(OMPI_|PMIX_|PRTE_|SLURM_|TORCHELASTIC_|OMP_|MKL_|GLOO_|NCCL_)\w*"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|GOMP_CPU_AFFINITY"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program left: of torchrun for all its ranks, of a bare process for one."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def ok(self) -> Outcome:
        """Return itself if the program ended well, else fail with what it wrote."""
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.output}"
        return self


# Programs by the mark of their processes, to be waited for when these have been killed.
_running: dict[str, list[Running]] = {}


class Running:
    """A program that runs; made by `start_torchrun` and `start_bare`, which also end it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, name: str
    ) -> None:
        _running.setdefault(environment[_MARK], []).append(self)
        self._files = [folder / f"{name}.{kind}" for kind in ("stdout", "stderr")]
        self._begin = time.monotonic()
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self.process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What was written so far, stdout first."""
        return "".join(path.read_text(errors="replace") for path in self._files)

    def wait_for(self, pattern: str, timeout_s: float = 60) -> re.Match[str]:
        """Return the first place in the output that matches, as soon as there is one."""
        end = time.monotonic() + timeout_s
        while True:
            ended = self.process.poll() is not None
            if found := re.search(pattern, self.output):
                return found
            assert not ended, f"ended without {pattern!r}:\n{self.output}"
            assert time.monotonic() < end, f"no {pattern!r} within {timeout_s} s:\n{self.output}"
            time.sleep(0.02)

    def wait(self, timeout_s: float = 60) -> Outcome:
        """Return what it left when it has ended; fail if it does not end in time."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {timeout_s} s:\n{self.output}") from None
        seconds = time.monotonic() - self._begin
        return Outcome(code, *(path.read_text(errors="replace") for path in self._files), seconds)


def torchrun(
    script: str | Path,
    *arguments: str,
    ranks: int = 2,
    timeout_s: float = 60,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Outcome:
    """Run a script under torchrun on this host and return what it left.

    Args:
        script: A file, or Python code.
        arguments: For the script.
        ranks: How many processes.
        timeout_s: After which the test fails.
        env: Variables besides those of this process.
        options: For torchrun, before the script.
    """
    with start_torchrun(script, *arguments, ranks=ranks, env=env, options=options) as running:
        return running.wait(timeout_s)


@contextlib.contextmanager
def start_torchrun(
    script: str | Path,
    *arguments: str,
    ranks: int = 2,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    prefix: Sequence[str] = (),
) -> Iterator[Running]:
    """Start a script under torchrun; at the end whatever it started is killed.

    Args:
        prefix: A command that runs torchrun: `ip netns exec NAME`.

    The other arguments are those of `torchrun`.
    """
    where = [] if any("rdzv" in option for option in options) else ["--standalone"]
    with _place(script, env) as (folder, path, environment):
        command = [*prefix, sys.executable, "-m", "torch.distributed.run", *where]
        command += ["--nproc-per-node", str(ranks), *options, str(path), *arguments]
        yield Running(command, environment, folder, "torchrun")


def bare(
    script: str | Path,
    *arguments: str,
    ranks: int = 2,
    timeout_s: float = 60,
    env: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Run a script as processes that know each other by variables alone, with no launcher."""
    with start_bare(script, *arguments, ranks=ranks, env=env) as running:
        return [one.wait(timeout_s) for one in running]


@contextlib.contextmanager
def start_bare(
    script: str | Path,
    *arguments: str,
    ranks: int = 2,
    env: Mapping[str, str] | None = None,
    only: Sequence[int] | None = None,
    may_leave: bool = False,
) -> Iterator[list[Running]]:
    """Start a script once for each rank; at the end whatever they started is killed.

    Args:
        only: The ranks that are started; all of them if None.
        may_leave: Whether children of theirs may be left behind, as those of a killed process are.

    The other arguments are those of `torchrun`; an empty value in `env` takes a variable away.
    """
    with _place(script, env, may_leave) as (folder, path, environment):
        port = str(free_port())
        started = []
        for rank in range(ranks) if only is None else only:
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            full = {name: value for name, value in {**own, **environment}.items() if value}
            command = [sys.executable, str(path), *arguments]
            started.append(Running(command, full, folder, f"rank{rank}"))
        yield started


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def command(words: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start any other launcher; at the end whatever it started is killed."""
    with _place("", env) as (folder, _, environment):
        yield Running(words, environment, folder, "command")


def leftovers(mark: str) -> list[psutil.Process]:
    """Return the processes, of any session, that were started with this mark."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, psutil.Error):
            if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                found.append(psutil.Process(int(name)))
    return found


@contextlib.contextmanager
def _place(
    script: str | Path, env: Mapping[str, str] | None, may_leave: bool = False
) -> Iterator[tuple[Path, Path, dict[str, str]]]:
    """Yield a folder, the script as a file and its environment; kill its processes afterwards.

    Processes that a program leaves behind when it ended well by itself are a failure of the test.
    """
    mark = uuid.uuid4().hex
    environment = {name: v for name, v in os.environ.items() if not _FOREIGN.fullmatch(name)}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")])
    )
    environment.update(env or {})
    environment[_MARK] = mark
    with tempfile.TemporaryDirectory() as name:
        path = script if isinstance(script, Path) else Path(name, "script.py")
        if isinstance(script, str):
            path.write_text(textwrap.dedent(script))
        try:
            yield Path(name), path, environment
            # A test that does not wait for the end of its program has seen enough.
            ended = all(one.process.poll() is not None for one in _running.get(mark, []))
            left = [one for one in leftovers(mark) if ended and not may_leave and _stays(one)]
            assert not left, f"processes were left behind: {left}"
        finally:
            kill_all(mark)
            for running in _running.pop(mark, []):
                running.process.wait(10)


def kill_all(mark: str) -> None:
    """Kill every process with this mark, also those that are stopped, and those they start."""
    end = time.monotonic() + 10
    while left := leftovers(mark):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=1)
        assert time.monotonic() < end, f"cannot be killed: {left}"


def _stays(process: psutil.Process) -> bool:
    try:
        process.wait(timeout=3)
    except psutil.TimeoutExpired:
        return True
    except psutil.Error:
        return False
    return False

"""Each system call of each operation on files fails once, at the boundary of the C library.

A shim (`_shim.c`) is loaded before the C library, so that native writers are hit like Python. For
every scenario (`_call_scenarios.py`) and mode of failing (`_fail_calls.py`) the operation runs once
for each of its calls, with that one failing. After each: the old state or the new one, bit for bit;
an error of Torchkiln's that names the file, or none; a file of the user's as it was; and, after the
operation was done again, nothing else left.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _amount import WHOLE, amount
from _call_expectations import EXPECTED_CALLS, NO_CALLS
from _call_scenarios import SCENARIOS
from _harmful_scenarios import HARMFUL
from _native_scenarios import NATIVE_SCENARIOS

from torchkiln.core import file_lock

HERE = Path(__file__).parent
MODES = ("one error", "kill")
if WHOLE:
    MODES += ("full disk", "no space once", "dead disk", "interrupt")
# Those in which every kind of call fails.
ALL_KINDS = ("one error", "dead disk", "interrupt")
# The way to fail in which each kind of harm shows.
HARM = {
    "overwriting in place": "dead disk",
    "leaving unfinished files": "one error",
    "removing what is another's": "one error",
    "hiding errors": "no space once",
}


class FaultServer:
    """A process with the shim, which runs scenarios."""

    def __init__(self, shim: Path, *arguments: str) -> None:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(shim),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HERE),
        }
        self._process = subprocess.Popen(
            [sys.executable, HERE / "_fault_server.py", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to build the shim that fails system calls")
    shim = tmp_path_factory.mktemp("shim") / "shim.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", HERE / "_shim.c", "-o", shim, "-ldl"]
    subprocess.run(command, check=True)
    return shim


@pytest.fixture(scope="session")
def server(shim: Path) -> Iterator[FaultServer]:
    server = FaultServer(shim)
    yield server
    server.close()


@pytest.fixture(scope="session")
def native_server(shim: Path) -> Iterator[FaultServer]:
    """One that has torch's compiler in memory."""
    server = FaultServer(shim, "native")
    yield server
    server.close()


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder with a compiled program, made once by whichever process comes first."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    folder = shared / "native program"
    with file_lock(shared / "native program.lock"):
        if not folder.exists():
            code = "import sys, pathlib, _native_program as p; p.build(pathlib.Path(sys.argv[1]))"
            unfinished = folder.with_suffix(".unfinished")
            environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", code, unfinished]
            subprocess.run(command, check=True, env=environment)
            unfinished.rename(folder)
    return folder


@pytest.fixture
def run(injected: Callable[..., None], survived: Callable[..., None]) -> Callable[..., None]:
    """A function that runs a scenario and counts."""

    def run_scenario(server: FaultServer, **request: Any) -> None:
        answer = server.ask(limit=amount(2, 10_000), **request)
        name, number = f"system calls: {request['mode']}", sum(answer.get("injected", {}).values())
        injected(name, number)
        _check(answer, request["scenario"], request["mode"])
        survived(name, number)

    return run_scenario


def _check(answer: dict[str, Any], scenario: str, mode: str) -> None:
    assert not answer["harm"], f"{scenario}, {mode}:\n" + "\n".join(answer["harm"])
    calls = {kind: number for kind, number in answer["calls"].items() if number}
    injected = answer["injected"]
    # Without these, all would be well if nothing ever failed.
    if mode in ALL_KINDS:
        assert calls.keys() >= EXPECTED_CALLS[scenario]
    assert bool(injected) == ((scenario, mode) not in NO_CALLS), injected
    if WHOLE and "PopTorch" not in scenario:  # copies files in hundreds of chunks
        assert injected == calls


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_system_call_may_fail(
    scenario: str, mode: str, server: FaultServer, tmp_path: Path, run: Callable[..., None]
) -> None:
    root = str(tmp_path / "root")
    run(server, scenario=scenario, mode=mode, root=root, native="")


@pytest.mark.parametrize("scenario", HARMFUL)
def test_harm_is_found(scenario: str, server: FaultServer, tmp_path: Path) -> None:
    request = {"scenario": scenario, "mode": HARM[scenario], "limit": 100, "native": ""}
    answer = server.ask(root=str(tmp_path / "root"), **request)
    assert any(HARMFUL[scenario][1] in harm for harm in answer["harm"]), answer


def test_all_scenarios_have_expectations() -> None:
    assert EXPECTED_CALLS.keys() == {*SCENARIOS, *NATIVE_SCENARIOS}


@pytest.mark.faults
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", NATIVE_SCENARIOS)
def test_each_system_call_around_native_code_may_fail(
    scenario: str,
    mode: str,
    native_server: FaultServer,
    native: Path,
    tmp_path: Path,
    run: Callable[..., None],
) -> None:
    root = str(tmp_path / "root")
    run(native_server, scenario=scenario, mode=mode, root=root, native=str(native))

"""What every test may rely on, and what none may leave behind."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import warnings
from pathlib import Path

import psutil
import pytest

# Two processes of pytest-xdist have two threads each. Threads that wait by spinning take the cores
# from those that compute: the suite took more than twice the time. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Helpers of Python and torch that live as long as the process, by a part of their command line.
_LASTING_PROCESSES = ("resource_tracker", "forkserver", "compile_worker")
# tqdm's monitor and Inductor's pools start once and wait for work.
_LASTING_THREADS = ("tmonitor", "tqdm", "subproc", "inductor", "threadpoolexecutor", "pydev")


def pytest_collection_finish() -> None:
    # What six thousand tests and their modules are made of stays to the end. Without looking at it
    # again a collection takes milliseconds, not a second, and every test with workers needs one.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One executable cache for the whole run: each native program is compiled once.

    `TORCHKILN_TEST_CACHE` names a directory that outlives the run, for work on the tests.
    """
    kept = os.environ.get("TORCHKILN_TEST_CACHE")
    if kept:
        return Path(kept)
    # Processes of pytest-xdist share the folder above their own: none compiles for itself.
    base = tmp_path_factory.getbasetemp()
    home = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = home / "executables"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress bars are drawn as on a terminal."""
    monkeypatch.setattr("torchkiln.core._progress.is_terminal", lambda stream: True)


@pytest.fixture(autouse=True)
def _same_start(cache_dir: Path):
    """The same environment, seed and thread count for every test, put back afterwards."""
    environment = dict(os.environ)
    for name in environment:
        if name.startswith(("TORCHKILN_", "POPTORCH_", "OMPI_COMM_WORLD_")):
            del os.environ[name]
    # Tests run on busy machines, too, beside each other.
    os.environ["TORCHKILN_IGNORE_LOAD"] = "1"
    # A shell starts what runs in the background with Ctrl-C ignored, which children would inherit.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Help texts and tables wrap; not by the terminal that the tests were started from.
    os.environ["COLUMNS"] = "100"
    import torch

    torch.set_num_threads(2)
    torch.manual_seed(1234)
    # A padded batch of one test would make another's unmasked BatchNorm warn.
    if (padding := sys.modules.get("torchkiln.graphs._padding_seen")) is not None:
        padding._seen = False
    yield
    signal.signal(signal.SIGINT, interrupt)
    left = (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
    )
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)
    os.environ.clear()
    os.environ.update(environment)
    assert left == (torch.float32, False, True), f"process-wide torch settings changed: {left}"


@pytest.fixture(autouse=True)
def _no_strays():
    """Fail the test that leaves a child process or a thread running."""
    threads, children = set(threading.enumerate()), set(_children())
    yield
    if not _new_threads(threads) and not _new_children(children):
        return
    gc.collect()  # a failed assertion's traceback may keep the owner alive in a cycle
    for thread in _new_threads(threads):
        thread.join(timeout=2)
    psutil.wait_procs(_new_children(children), timeout=2)
    assert not _new_threads(threads), f"threads left behind: {_new_threads(threads)}"
    assert not _new_children(children), f"processes left behind: {_new_children(children)}"


def _new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in set(threading.enumerate()) - before
        if not any(
            word in f"{type(thread).__name__} {thread.name}".lower() for word in _LASTING_THREADS
        )
    ]


def _children() -> list[psutil.Process]:
    try:
        # psutil reads about every process there is, twice for each test; mostly there is no child.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    return psutil.Process().children()


def _new_children(before: set[psutil.Process]) -> list[psutil.Process]:
    return [child for child in set(_children()) - before if not _lasts(child)]


def _lasts(child: psutil.Process) -> bool:
    try:
        if child.status() == psutil.STATUS_ZOMBIE:
            return True
        return any(word in " ".join(child.cmdline()) for word in _LASTING_PROCESSES)
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(params=["eager", "capture"])
def options(request: pytest.FixtureRequest):
    """Options for each backend that costs no code generation."""
    from torchkiln.core import Options

    return Options(backend=request.param, show_progress=False)


@pytest.fixture
def small_work_is_shared():
    """Native operators use all threads, however little there is to do."""
    from torchkiln.ops._native import load_native

    sources = ("_cfconv", "_refine", "_scatter", "_segment_sum", "_softplus_mlp")
    name = "torchkiln_min_numel_per_thread"
    libraries = [library for source in sources if (library := load_native(source)) is not None]
    limits = [ctypes.c_int64.in_dll(library, name) for library in libraries]
    usual = [limit.value for limit in limits]
    for limit in limits:
        limit.value = 1
    yield
    for limit, value in zip(limits, usual, strict=True):
        limit.value = value


@pytest.fixture
def use_plain_torch():
    """A function that takes native kernels away until the test ends."""
    import torch

    import torchkiln.ops  # noqa: F401 - defines them

    library = torch.library.Library("torchkiln", "IMPL")

    def use():
        # torch warns of what is the purpose here.
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name in torch._C._dispatch_get_all_op_names():
            if name.startswith("torchkiln::") and name.endswith("_plain"):
                plain = getattr(torch.ops.torchkiln, name.removeprefix("torchkiln::")).default
                kernel = name.removesuffix("_plain")
                library.impl(kernel, plain, "CPU", allow_override=True)

    with warnings.catch_warnings():
        yield use
    library._destroy()

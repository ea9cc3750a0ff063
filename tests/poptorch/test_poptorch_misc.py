import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
import poptorch.testing
from poptorch._shadow import find_other_poptorch
from torchkiln import core

# hooks


@pytest.fixture
def events():
    seen = []
    handles = [
        poptorch.registerPreCompileHook(lambda: seen.append("before")),
        poptorch.registerPostCompileHook(lambda: seen.append("after")),
    ]
    yield seen
    for handle in handles:
        handle.remove()


def test_hooks_run_around_every_compilation(events):
    model = poptorch.inferenceModel(nn.Linear(1, 1))
    model(torch.ones(1, 1))
    model(torch.ones(1, 1))
    assert events == ["before", "after"]


def test_post_hooks_run_after_a_failure_too(events):
    with pytest.raises(poptorch.Error):
        poptorch.trainingModel(nn.Linear(1, 1))(torch.ones(1, 1))
    assert events == ["before", "after"]


def test_removed_hooks_are_silent_and_hooks_must_be_callable():
    seen = []
    poptorch.registerPreCompileHook(lambda: seen.append(1)).remove()
    poptorch.inferenceModel(nn.Linear(1, 1))(torch.ones(1, 1))
    assert seen == []
    with pytest.raises(RuntimeError, match="must be callable"):
        poptorch.registerPostCompileHook(3)


# profiling


def test_channels_record_for_listeners():
    class Work:
        def step(self, x):
            return x + 1

        def __getitem__(self, index):
            return 10 * index

    spans = []
    remove = core.add_listener(spans.append)
    try:
        channel = poptorch.profiling.Channel("mine")
        with channel.tracepoint("part"):
            work = channel.instrument(Work(), "step", "__getitem__")
        assert work.step(1) == 2
        assert work[2] == Work()[2] == 20
    finally:
        remove()
    assert {span.channel for span in spans} == {"mine"}
    assert [span.label for span in spans] == ["part", "step", "__getitem__"]


# testing


def test_allclose_is_recursive_and_never_raises():
    a = [torch.ones(2), (torch.zeros(1), torch.zeros(1))]
    b = [torch.ones(2), (torch.zeros(1), torch.full((1,), 1e-9))]
    assert poptorch.testing.allclose(a, b)
    assert not poptorch.testing.allclose(a, b[:1])
    assert not poptorch.testing.allclose(a, tuple(b))
    assert not poptorch.testing.allclose(torch.ones(2), torch.ones(3))
    assert not poptorch.testing.allclose(torch.ones(2), torch.zeros(2))


# hardware and installation


def test_there_is_no_hardware():
    assert poptorch.ipuHardwareIsAvailable() is False
    assert poptorch.ipuHardwareIsAvailable(4) is False
    with pytest.raises(AssertionError, match="No IPU hardware"):
        poptorch.ipuHardwareVersion()


def make_package(directory):
    (directory / "poptorch").mkdir(parents=True)
    (directory / "poptorch" / "__init__.py").write_text("")
    return directory


def test_another_poptorch_is_found_and_our_own_is_not(tmp_path):
    own = Path(poptorch.__file__).parent
    other = make_package(tmp_path / "graphcore")
    (tmp_path / "tests" / "poptorch").mkdir(parents=True)
    assert find_other_poptorch(own, [str(own.parent), str(tmp_path / "tests")]) is None
    assert find_other_poptorch(own, [str(own.parent), str(other)]) == other / "poptorch"


def test_importing_beside_another_poptorch_warns(tmp_path):
    other = make_package(tmp_path)
    code = f"import sys; sys.path.append({str(other)!r}); import poptorch"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "two packages are called poptorch" in result.stderr
    assert str(other) in result.stderr


def test_every_public_name_exists_and_removed_ones_do_not():
    for name in poptorch.__all__:
        assert hasattr(poptorch, name)
    for name in ("addBlock", "cast", "PhasedExecution", "autocasting", "AnchorMode"):
        assert not hasattr(poptorch, name)
    assert poptorch.BlockId is str
    assert poptorch.__version__.startswith("3.4")

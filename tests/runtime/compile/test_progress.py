"""The progress bar follows what really happens."""

import threading

import pytest
import torch
from torch import nn

from torchkiln import NoLossError, Options, inference_model, training_model
from torchkiln.core import add_listener
from torchkiln.runtime.compile import _bar, _progress
from torchkiln.runtime.compile._progress import CompileProgress

pytestmark = pytest.mark.usefixtures("watched")


class Tiny(nn.Module):
    def __init__(self, good=True):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.good = good

    def forward(self, x, y):
        out = self.layer(x)
        return nn.functional.mse_loss(out, y) if self.good else out


def compile_tiny(**options):
    program = training_model(Tiny(), Options(backend="capture", **options))
    program.compile(torch.ones(2, 2), torch.ones(2, 1))
    return program


def test_the_bar_has_its_name_and_reaches_the_end(watched, capsys):
    program = compile_tiny()
    err = capsys.readouterr().err
    assert "Graph compilation: 100%" in err
    assert program.compilation_time > 0


def test_the_bar_names_the_program_and_the_phase(watched, capsys):
    compile_tiny()
    err = capsys.readouterr().err
    assert "training step: capture" in err
    program = inference_model(Tiny(), Options(backend="capture"), name="validation")
    program.compile(torch.ones(2, 2), torch.ones(2, 1))
    assert "validation: capture" in capsys.readouterr().err


def test_the_bar_is_quiet_where_nobody_watches(capsys, monkeypatch):
    """Standard error of a job in a queue is no terminal."""
    monkeypatch.setattr("torchkiln.core._progress.is_terminal", lambda stream: False)
    compile_tiny()
    assert capsys.readouterr().err == ""


def test_the_clock_moves_while_nothing_else_happens(monkeypatch, watched, capsys):
    monkeypatch.setattr(_bar, "_TICK_S", 0.01)
    bar = _bar.ClockBar(10, "Waiting", show=True)
    drawn = threading.Event()
    refresh = bar._bar.refresh

    def note():
        refresh()
        drawn.set()

    bar._bar.refresh = note
    assert drawn.wait(timeout=30)
    bar.close()
    assert "Waiting:   0%" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 200])
def test_the_longest_text_fits_into_the_terminal(monkeypatch, watched, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with CompileProgress(show=True, name="training step") as progress:
        progress._bar._bar.dynamic_ncols = lambda _stream: (columns, 40)
        monkeypatch.setattr(_progress, "missing_natives", lambda names: sorted(names))
        monkeypatch.setattr(_progress, "prepare_natives", lambda names, tell: tell(3, 5))
        progress.build_helpers({"_a", "_b"})
    lines = [line.strip("\n") for line in capsys.readouterr().err.split("\r")]
    assert any("training step: native helpers 3/5" in line for line in lines)
    assert max(len(line) for line in lines if "native helpers 3/5" in line) <= columns


def test_native_helpers_are_a_phase_that_moves_the_bar(monkeypatch):
    monkeypatch.setattr(_progress, "missing_natives", lambda names: sorted(names))
    seen = []

    def prepare(names, tell):
        for done in range(3):
            tell(done, 2)
            seen.append(progress.percent)

    monkeypatch.setattr(_progress, "prepare_natives", prepare)
    with CompileProgress(show=False) as progress:
        monkeypatch.setattr(progress._bar, "_bar", _Counter())
        progress.build_helpers({"_a", "_b"})
        progress.start_entry("step", 1.0)
        seen.append(progress.percent)
    assert seen == [10, 25, 40, 40]


class _Counter:
    """As much of a tqdm as moves."""

    n, postfix = 0, None

    def update(self, amount):
        self.n += amount

    def refresh(self):
        pass

    def close(self):
        pass


def test_the_bar_can_be_switched_off(watched, capsys):
    compile_tiny(show_progress=False)
    assert "Graph compilation" not in capsys.readouterr().err


def test_a_failed_build_does_not_claim_to_be_complete(watched, capsys):
    program = training_model(Tiny(good=False), Options(backend="capture"))
    with pytest.raises(NoLossError):
        program.compile(torch.ones(2, 2), torch.ones(2, 1))
    assert "100%" not in capsys.readouterr().err


def test_every_compiler_command_moves_the_bar(monkeypatch, watched):
    from torch._inductor.cpp_builder import CppBuilder

    monkeypatch.setattr(CppBuilder, "build", lambda self: "built")
    phases, seen = [], []
    remove = add_listener(lambda span: phases.append(span.label))
    try:
        with CompileProgress(show=True) as progress:
            progress.start_entry("step", 1.0)
            with progress.watch_compiler():
                for _ in range(4):
                    assert CppBuilder.build(None) == "built"
                    seen.append(progress.percent)
            progress.enter("packaging")
    finally:
        remove()
    assert seen == sorted(set(seen))
    assert phases == ["capture", "code generation", "C++ compilation", "packaging"]


def test_compiling_twice_is_ignored_with_a_warning():
    program = compile_tiny(show_progress=False)
    with pytest.warns(UserWarning, match="compiled already"):
        program.compile(torch.ones(2, 2), torch.ones(2, 1))
    assert program.num_compiles == 1

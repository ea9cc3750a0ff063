"""The progress bar follows what really happens."""

import io

import pytest
import torch
from torch import nn

from torchkiln import NoLossError, Options, training_model
from torchkiln.core import add_listener
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


def test_the_bar_has_its_name_and_reaches_the_end(capsys):
    program = compile_tiny()
    err = capsys.readouterr().err
    assert "Graph compilation: 100%" in err
    assert "100/100" in err
    assert program.compilation_time > 0


def test_the_bar_can_be_switched_off(capsys):
    compile_tiny(show_progress=False)
    assert "Graph compilation" not in capsys.readouterr().err


def test_a_failed_build_does_not_claim_to_be_complete(capsys):
    program = training_model(Tiny(good=False), Options(backend="capture"))
    with pytest.raises(NoLossError):
        program.compile(torch.ones(2, 2), torch.ones(2, 1))
    assert "100/100" not in capsys.readouterr().err


def test_every_compiler_command_moves_the_bar(monkeypatch):
    from torch._inductor.cpp_builder import CppBuilder

    monkeypatch.setattr(CppBuilder, "build", lambda self: "built")
    phases, seen = [], []
    remove = add_listener(lambda span: phases.append(span.label))
    try:
        with CompileProgress(show=True) as progress:
            progress._bar.fp = io.StringIO()
            progress.start_entry("step", 1.0)
            with progress.watch_compiler():
                for _ in range(4):
                    assert CppBuilder.build(None) == "built"
                    seen.append(progress._bar.n)
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

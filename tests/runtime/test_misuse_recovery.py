"""Warnings, damaged files, and what is left after an error."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from _misuse import Net, X, Y, compiled, training
from torch import nn

from torchkiln.core import ArgumentError, ExecutableError, ShapeChanged
from torchkiln.runtime import load

SGD = torch.optim.SGD


# -- files -------------------------------------------------------------------------------------


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(ExecutableError, match=r"does not exist; export\(\) writes such files"):
        load(tmp_path / "nothing", Net())


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 truncated"])
def test_damaged_file_is_reported(content, tmp_path):
    path = tmp_path / "program.kiln"
    path.write_bytes(content)
    with pytest.raises(ExecutableError, match=r"damaged.*export it again"):
        load(path, Net())


def test_directory_instead_of_a_file_is_reported(tmp_path):
    with pytest.raises(ExecutableError, match="not an exported program"):
        load(tmp_path, Net())


# -- warnings ----------------------------------------------------------------------------------


def test_second_compile_warns_and_is_ignored():
    program = compiled()
    with pytest.warns(UserWarning, match=r"compiled already.*destroy\(\)"):
        program.compile(torch.ones(5, 3), Y)
    program(X, Y)


def test_input_that_requires_a_gradient_warns():
    program = training()
    with pytest.warns(UserWarning, match="are detached"):
        program(X.clone().requires_grad_(), Y)


def test_non_contiguous_input_warns_once():
    program = training()
    strided = torch.ones(3, 4).t()
    with pytest.warns(UserWarning, match=r"x is not contiguous.*\.contiguous\(\)"):
        program(strided, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program(strided, Y)


def test_subclass_of_an_optimizer_warns_that_its_step_is_not_run():
    class Mine(SGD):
        def step(self, closure=None):
            raise AssertionError("never called")

    module = Net()
    with pytest.warns(UserWarning, match="Mine.step is Python code.*SGD is used"):
        program = training(module, Mine(module.parameters(), lr=0.1))
    program(X, Y)


def test_subclass_without_its_own_step_does_not_warn():
    class Named(SGD):
        pass

    module = Net()
    training(module, Named(module.parameters(), lr=0.1))(X, Y)


def test_trainable_tensor_outside_the_module_warns():
    teacher = nn.Linear(3, 3)

    class Student(Net):
        def forward(self, x, y):
            return super().forward(teacher(x), y)

    program = training(Student())
    with pytest.warns(UserWarning, match=r"outside the module.*compiled in.*nn\.ModuleList"):
        program(X, Y)


def test_failed_call_leaves_the_program_usable():
    program = compiled()
    with pytest.raises(ShapeChanged):
        program(torch.ones(5, 3), Y)
    assert program(X, Y)[0].shape == (4, 2)
    assert program.num_compiles == 1


def test_failed_compile_leaves_the_program_usable():
    program = training()
    with pytest.raises(ArgumentError):
        program(X)
    assert not program.is_compiled
    program(X, Y)


def test_failed_export_writes_nothing(tmp_path: Path):
    with pytest.raises(ExecutableError):
        compiled().export(tmp_path / "program.kiln")
    assert list(tmp_path.iterdir()) == []

import sys

import pytest

from torchkiln.apps import _invocation
from torchkiln.apps._invocation import invocation

FLAGS = ["--limit", "5"]


@pytest.fixture
def called(monkeypatch):
    """Pretend that the process was started by a command line."""

    def call(original, own):
        monkeypatch.setattr(sys, "orig_argv", original)
        monkeypatch.setattr(sys, "argv", own)

    return call


def test_a_script_is_called_as_it_was(called):
    called(["python3", "code/bench.py", *FLAGS], ["code/bench.py", *FLAGS])
    assert invocation("bench.py", None) == "python3 code/bench.py"
    called([".venv/bin/python", "-u", "bench.py", *FLAGS], ["bench.py", *FLAGS])
    assert invocation("bench.py", FLAGS) == ".venv/bin/python -u bench.py"


def test_folders_with_spaces_can_be_pasted(called):
    called(["python", "my code/bench.py"], ["my code/bench.py"])
    assert invocation("bench.py", None) == "python 'my code/bench.py'"


@pytest.mark.parametrize("is_found", [True, False])
def test_an_installed_command_is_called_by_its_name(called, monkeypatch, is_found):
    command = "/opt/env/bin/torchkiln"
    called(["/opt/env/bin/python", command, "bench", *FLAGS], [command, "bench", *FLAGS])
    monkeypatch.setattr(_invocation.shutil, "which", lambda name: command if is_found else None)
    expected = "torchkiln bench" if is_found else f"{command} bench"
    assert invocation("torchkiln bench", FLAGS) == expected


def test_a_module_is_called_as_a_module(called):
    called(
        ["python", "-m", "torchkiln", "bench", "cosmic", "mode=train"],
        ["/somewhere/torchkiln/__main__.py", "bench", "cosmic", "mode=train"],
    )
    expected = "python -m torchkiln bench cosmic"
    assert invocation("torchkiln bench cosmic", ["mode=train"]) == expected


def test_elsewhere_the_name_of_the_program_has_to_do():
    """As in a notebook or a test, whose own command line is another one."""
    assert invocation("bench.py", FLAGS) == "python bench.py"
    assert invocation("torchkiln bench", FLAGS) == "torchkiln bench"

import subprocess
import sys

import pytest

from torchkiln.core import CheckpointError, OptionsError, ShortOfMemory
from torchkiln.report import RunResult
from torchkiln.training import ExitCode, exit_code
from torchkiln.training._exit_codes import run_command


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1), ("interrupted", 130)])
def test_every_status_has_a_code(status, code):
    assert exit_code(RunResult(status=status)) == code


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OptionsError("no such flag"), 2, "prog: no such flag\nMore: prog --help\n"),
        (CheckpointError("damaged"), 1, "prog: damaged\n"),
        (MemoryError("8 GB"), 1, "prog: not enough memory (8 GB); use less\n"),
        (
            ShortOfMemory("too much; try half", "too much"),
            1,
            "prog: too much; use less\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_are_one_line_and_a_code(capsys, error, code, said):
    def fail():
        raise error

    assert run_command(fail, "prog", "use less") == code
    assert capsys.readouterr().err == said


def test_other_errors_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0, "prog", "use less")
    assert run_command(lambda: ExitCode.OK, "prog", "use less") == 0


def test_codes_need_no_torch():
    code = "import sys; from torchkiln.training import exit_code; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

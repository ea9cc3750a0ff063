"""Clock reads in native code: off until asked for, zero for calls that were left out."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from torchkiln.core import ExecutableError
from torchkiln.runtime.compile._marks import mark_calls
from torchkiln.runtime.compile._plan import Plan
from torchkiln.runtime.execute._marks import Marks, find_libraries
from torchkiln.torch_internals._inductor_plan import call_mark

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
PAUSE = "{ timespec pause{0, 2000000}; nanosleep(&pause, nullptr); }"


def build(folder, code):
    source, library = folder / "code.cpp", folder / "code.so"
    source.write_text(code)
    command = ["g++", "-shared", "-fPIC", "-fvisibility=hidden", "-o", library, source]
    subprocess.run(command, check=True)
    return library, ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Three calls, of which the middle one is in a branch, with the code of a real program."""
    marks = [call_mark()(f"kernel_{number}") for number in range(3)]
    lines = list(marks)
    header = mark_calls(lines, "digest")
    assert lines[0] == "torchkiln_mark(0);"
    assert [mark.statement for mark in marks] == [
        f"torchkiln_mark({number});" for number in (1, 2, 3)
    ]
    first, second, third = (mark.statement for mark in marks)
    body = f"{lines[0]} {PAUSE} {first} if (branch) {{ {PAUSE} {second} }} {third}"
    shown = 'extern "C" __attribute__((visibility("default")))'
    code = f"{header}\n{shown} void run(int branch) {{ {body} }}"
    return build(tmp_path_factory.mktemp("marked"), code)


def test_nothing_is_read_while_switched_off(program):
    library, loaded = program
    marks = Marks(library)
    loaded.run(1)
    assert not marks.take().any()
    with marks.on():
        loaded.run(1)
    loaded.run(0)
    times = marks.take()
    assert times[0] > 0, "times are those of the run that was asked for"
    assert not marks.take().any()


def test_calls_have_their_time_and_those_that_do_not_run_have_none(program):
    library, loaded = program
    marks = Marks(library)
    with marks.on():
        loaded.run(1)
    begin, first, second, third = marks.take()
    assert begin > 0
    assert first >= 2_000_000
    assert second >= 2_000_000
    assert 0 <= third < first
    with marks.on():
        loaded.run(0)
    begin, first, second, third = marks.take()
    assert first >= 2_000_000
    assert second == 0
    assert third >= 0


def test_the_switch_is_off_after_an_error(program):
    library, loaded = program
    marks = Marks(library)
    with pytest.raises(KeyError), marks.on():
        raise KeyError
    loaded.run(1)
    assert not marks.take().any()


def test_the_plan_travels_with_the_code(program):
    library, _ = program
    plan = Plan.from_json(Marks(library).plan_text)
    assert [call.kernel for call in plan.calls] == ["kernel_0", "kernel_1", "kernel_2"]
    assert plan.digest == "digest"


def test_code_without_reads_is_refused(tmp_path):
    library, _ = build(tmp_path, 'extern "C" void run() {}')
    with pytest.raises(ExecutableError, match=r"no clock reads.*compile it again"):
        Marks(library)


def test_what_is_not_loaded_is_not_loaded_for_this(tmp_path):
    with pytest.raises(OSError, match=r"missing\.so"):
        Marks(tmp_path / "missing.so")


def test_libraries_are_found_by_their_entry(tmp_path):
    for name in ("step", "infer", "other"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "x.so").touch()
    found = find_libraries(tmp_path, ["step", "infer", "update"])
    assert {name: path.parent.name for name, path in found.items()} == {
        "step": "step",
        "infer": "infer",
    }


def test_times_are_copies(program):
    library, loaded = program
    marks = Marks(library)
    with marks.on():
        loaded.run(1)
        first = marks.take()
        kept = np.copy(first)
        loaded.run(1)
    np.testing.assert_array_equal(first, kept)

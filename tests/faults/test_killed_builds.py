"""A build that was killed must not spoil later ones, nor leave its compiler or its files."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from _amount import amount
from _damage_to_files import apply, damages
from _processes import child, environment, marked_processes, require_gone, wait_until
from _tiny_native import losses_of, make_program

from torchkiln.runtime.compile import _inductor_compiler
from torchkiln.runtime.compile._inductor_compiler import guarded_compiler

HERE = Path(__file__).parent


@pytest.fixture
def precompile(tmp_path, monkeypatch):
    """A function that compiles a small header, as a new process would; returns the result."""
    tmp_path.chmod(0o755)

    def make() -> Path:
        monkeypatch.setattr(_inductor_compiler, "_known", {})
        with guarded_compiler(tmp_path):
            from torch._inductor import codecache

            path = codecache._precompile_header("cstdint", "none", device_type="cpu")
        return Path(path + ".gch")

    return make


def test_a_damaged_header_is_compiled_again(precompile, tmp_path, survived):
    compiled = precompile()
    assert compiled.is_relative_to(tmp_path)  # not where everybody may write
    good = compiled.read_bytes()
    before = compiled.stat().st_mtime_ns
    assert precompile().stat().st_mtime_ns == before  # an intact one is used
    for number in range(amount(1, 3)):
        offset = len(good) * number // 3
        damaged = bytearray(good)
        damaged[offset] ^= 0x10
        for content in (good[:offset], bytes(damaged)):
            compiled.write_bytes(content)
            assert precompile() == compiled
            assert _inductor_compiler._has_seal(compiled)
            assert compiled.read_bytes() != content
            survived("a damaged header of the compiler")
    assert not list(tmp_path.rglob("*.torchkiln-tmp"))


def test_damage_to_a_header_or_its_seal_is_found(precompile, survived):
    """Without compiling it again: whether it is taken for whole is what counts."""
    compiled = precompile()
    seal = _inductor_compiler._seal(compiled)
    assert _inductor_compiler._has_seal(compiled)
    for path in (compiled, seal):
        good = path.read_bytes()
        for damage in damages(len(good), amount(20, 200)):
            path.write_bytes(apply(damage, good))
            assert not _inductor_compiler._has_seal(compiled), f"{path.name}: {damage}"
            survived("a damaged header of the compiler")
        path.write_bytes(good)
    assert _inductor_compiler._has_seal(compiled)


def test_a_header_that_nobody_vouches_for_is_compiled_again(precompile):
    compiled = precompile()
    compiled.with_name(compiled.name + ".json").unlink()
    compiled.write_bytes(b"gpch from somewhere")
    assert precompile().stat().st_size > 1000


@pytest.mark.faults
@pytest.mark.inductor
def test_a_build_after_a_killed_one_works(tmp_path, survived):
    """Killed with its compiler in the middle of its work, as the system does without memory."""
    (tmp_path / "tmp").mkdir()
    mark = f"killed build in {tmp_path}"
    variables = {
        "XDG_CACHE_HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "tmp"),
        "FAULT_MARK": mark,
    }
    command = ["-W", "ignore", str(HERE / "_tiny_native.py"), str(tmp_path / "cache")]
    keywords = {"env": environment(**variables), "stdout": subprocess.PIPE, "text": True}
    with child(command, **keywords) as process:
        wait_until(lambda: list(tmp_path.rglob("*.gch")), "a compiler that writes")
        while others := marked_processes(mark):  # some start others meanwhile
            for other in others:
                with contextlib.suppress(psutil.NoSuchProcess):
                    other.kill()
            process.poll()
        assert process.wait() == -signal.SIGKILL
    with child(command, **keywords) as process:
        out, _ = process.communicate()
        assert process.returncode == 0
        assert '"compiles": 1' in out
    assert not list(tmp_path.rglob("*.torchkiln-tmp"))
    survived("a build killed with its compiler")


@pytest.mark.faults
@pytest.mark.inductor
def test_a_killed_process_leaves_no_unpacked_package(cache_dir, tmp_path, survived):
    """torch unpacks native code into the temporary directory."""
    losses_of(make_program(cache_dir), 1)  # so that the child finds it
    code = (
        f"import sys, time; sys.path.insert(0, {str(HERE)!r})\n"
        "from _tiny_native import *\n"
        f"losses_of(make_program({str(cache_dir)!r}), 1)\n"
        "print('ran', flush=True); time.sleep(1000)"
    )
    (tmp_path / "tmp").mkdir()
    variables = environment(TMPDIR=str(tmp_path / "tmp"))
    with child(["-c", code], env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ran\n"
        process.kill()
        process.wait()
    left = [path.name for path in (tmp_path / "tmp").iterdir()]
    assert not [name for name in left if "aotinductor" in name or "torchkiln" in name], left
    survived("a process killed while its native code is loaded")


def test_a_compiler_ends_with_the_process_that_is_interrupted(tmp_path, survived):
    """g++ is a driver: what it started would go on after it was killed."""
    mark = f"compiler of {tmp_path}"
    compiler = tmp_path / "compiler.sh"
    compiler.write_text("#!/bin/sh\nsleep 1000 &\necho begun > begun\nwait\n")
    compiler.chmod(0o755)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from torchkiln.core import run_compiler, run_stoppable\n"
        f"sys.exit(run_stoppable(lambda: run_compiler([{str(compiler)!r}], Path('out.o'))))"
    )
    for kind, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        keywords = {"env": environment(FAULT_MARK=mark), "cwd": tmp_path}
        with child(["-c", code], stderr=subprocess.PIPE, text=True, **keywords) as process:
            wait_until((tmp_path / "begun").exists, "the compiler")
            (tmp_path / "begun").unlink()
            process.send_signal(kind)
            assert process.wait() == expected
            assert process.stderr.read() in ("interrupted\n", "terminated\n")
        require_gone(marked_processes(mark))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["compiler.sh"]
        survived("Ctrl-C or SIGTERM while a compiler runs")

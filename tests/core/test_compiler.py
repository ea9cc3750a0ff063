"""A compiler that is not there is not taken for a disk that is full."""

import subprocess

import pytest

from torchkiln.core import run_compiler


def test_missing_compiler_is_told_as_a_shell_does(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as told:
        run_compiler(["no-such-compiler"], tmp_path / "out.o")
    assert told.value.returncode == 127
    assert b"no-such-compiler" in told.value.output
    assert list(tmp_path.iterdir()) == []

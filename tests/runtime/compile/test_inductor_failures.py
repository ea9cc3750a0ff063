"""What is blamed when a build fails, and which errors pass as they are."""

import subprocess
from unittest import mock

import pytest
import torch

from torchkiln import Options, inference_model
from torchkiln.core import TrustError
from torchkiln.runtime.compile import _inductor
from torchkiln.runtime.compile._inductor import explain_failure


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "g++"),
        FileNotFoundError(2, "No such file or directory", "/opt/bin/clang++"),
        subprocess.CalledProcessError(1, ["cc1plus"]),
        RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx"),
    ],
)
def test_the_compiler_is_blamed_for_its_own_failures(error):
    assert "install g++" in explain_failure(error)


def test_a_compiler_that_the_user_named_is_known(monkeypatch):
    monkeypatch.setenv("CXX", "/opt/mine/icpx -v")
    assert "install g++" in explain_failure(FileNotFoundError(2, "No such file", "icpx"))


@pytest.mark.parametrize("name", ["/proc/nohome", "openssl", "/tmp/x/header.h"])
def test_the_compiler_is_not_blamed_for_other_missing_files(name):
    told = explain_failure(FileNotFoundError(2, "No such file or directory", name))
    assert "install g++" not in told
    assert name in told


def test_errors_of_our_own_pass_unchanged():
    program = inference_model(torch.nn.Linear(3, 2), Options(show_progress=False))
    refused = TrustError("somebody else could have written it")
    with (
        mock.patch.object(_inductor, "private_workspace", side_effect=refused),
        pytest.raises(TrustError, match="somebody else"),
    ):
        program(torch.ones(2, 3))

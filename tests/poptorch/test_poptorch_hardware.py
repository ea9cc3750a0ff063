"""Programs that ask for the hardware first."""

import subprocess
import sys

import pytest

import poptorch

PRETEND = "TORCHKILN_PRETEND_IPU"
EMULATORS = ["POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"]


@pytest.fixture(autouse=True)
def _nothing_is_asked_for(monkeypatch):
    for name in (PRETEND, *EMULATORS):
        monkeypatch.delenv(name, raising=False)


def assert_there_is_none():
    assert poptorch.ipuHardwareIsAvailable() is False
    assert poptorch.ipuHardwareIsAvailable(4) is False
    with pytest.raises(AssertionError, match=r"No IPU hardware.*TORCHKILN_PRETEND_IPU=1"):
        poptorch.ipuHardwareVersion()


def test_there_is_no_hardware():
    assert_there_is_none()


@pytest.mark.parametrize("value", ["0", ""])
def test_a_variable_that_is_off_pretends_nothing(value, monkeypatch):
    monkeypatch.setenv(PRETEND, value)
    assert_there_is_none()


def test_hardware_is_pretended(monkeypatch):
    monkeypatch.setenv(PRETEND, "1")
    assert poptorch.ipuHardwareIsAvailable() is True
    assert poptorch.ipuHardwareIsAvailable(16) is True
    assert poptorch.ipuHardwareVersion() == 2


@pytest.mark.parametrize("emulator", EMULATORS)
def test_an_emulator_is_no_hardware(emulator, monkeypatch):
    monkeypatch.setenv(emulator, "1")
    assert_there_is_none()
    monkeypatch.setenv(PRETEND, "1")
    assert_there_is_none()
    monkeypatch.setenv(emulator, "0")
    assert poptorch.ipuHardwareIsAvailable() is True


PROGRAM = """
import poptorch, torch
if not poptorch.ipuHardwareIsAvailable():
    raise SystemExit("no hardware")
print(poptorch.inferenceModel(torch.nn.ReLU())(torch.tensor([-1.0, 2.0])).tolist())
"""


def test_a_program_that_insists_on_hardware_runs(monkeypatch):
    monkeypatch.setenv(PRETEND, "1")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == "[0.0, 2.0]", ran.stderr

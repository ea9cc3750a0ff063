import pytest
import torch

from torchkiln.apps._device import check_device, usable_devices
from torchkiln.core import OptionsError


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def test_the_processor_is_always_there():
    check_device("cpu")
    assert usable_devices()[0] == "cpu"


@pytest.mark.usefixtures("two_gpus")
def test_a_device_that_is_there_is_no_error():
    for name in ("cuda", "cuda:0", "cuda:1"):
        check_device(name)
    with pytest.raises(OptionsError, match="there is no cuda device number 2; usable are cpu, cu"):
        check_device("cuda:2")
    with pytest.raises(OptionsError, match="PyTorch finds no mps device here"):
        check_device("mps")


def test_a_torch_without_cuda_says_so(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(OptionsError, match=r"is built without CUDA; usable are cpu$"):
        check_device("cuda")


def test_a_name_that_is_no_device_is_an_error():
    with pytest.raises(OptionsError, match="write cpu, cuda or, with a number, cuda:0"):
        check_device("gpu", "--device")

"""`--device`: a name becomes a device that is there, or an error before anything is loaded."""

from __future__ import annotations

from torchkiln.core import OptionsError


def check_device(name: str, flag: str = "--device") -> None:
    """Make sure that PyTorch can compute on the device of this name.

    Args:
        name: Such as cpu, cuda or cuda:1.
        flag: How the user said it.

    Raises:
        OptionsError: It is no name of a device, or there is no such device here; the message names
            those that there are.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionsError(
            f"{flag} {name!r} is no device; write cpu, cuda or, with a number, cuda:0"
        ) from error
    if device.type == "cpu":
        return
    usable = usable_devices()
    number = device.index or 0
    if f"{device.type}:{number}" in usable:
        return
    reason = f"PyTorch finds no {device.type} device here"
    if device.type == "cuda" and torch.version.cuda is None:
        reason = f"this PyTorch ({torch.__version__}) is built without CUDA"
    elif f"{device.type}:0" in usable:
        reason = f"there is no {device.type} device number {number}"
    raise OptionsError(f"{flag} {name}: {reason}; usable are {', '.join(usable)}")


def usable_devices() -> list[str]:
    """Return the names of all devices that PyTorch can compute on here."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return ["cpu"]
    count = torch.accelerator.device_count()
    return ["cpu", *(f"{found.type}:{number}" for number in range(count))]

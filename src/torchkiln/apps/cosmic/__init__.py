"""CosmicTagger as an application: train, inference and iotest on any of three kinds of device.

Names below are imported when first used: reading a command line needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchkiln.apps.cosmic._arguments import read_settings as read_settings
    from torchkiln.apps.cosmic._devices import CompiledDevice as CompiledDevice
    from torchkiln.apps.cosmic._devices import Device as Device
    from torchkiln.apps.cosmic._devices import PlainDevice as PlainDevice
    from torchkiln.apps.cosmic._main import main as main
    from torchkiln.apps.cosmic._settings import ComputeMode as ComputeMode
    from torchkiln.apps.cosmic._settings import OptimizerKind as OptimizerKind
    from torchkiln.apps.cosmic._settings import Settings as Settings

_PLACES = {
    "CompiledDevice": "_devices",
    "ComputeMode": "_settings",
    "Device": "_devices",
    "OptimizerKind": "_settings",
    "PlainDevice": "_devices",
    "Settings": "_settings",
    "main": "_main",
    "read_settings": "_arguments",
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"torchkiln.apps.cosmic.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'torchkiln.apps.cosmic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

"""CosmicTagger as an application: train, inference and iotest on any of three kinds of device.

Names below are imported when first used: reading a command line needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.core._lazy_names import lazy_names

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
    "CompiledDevice": "torchkiln.apps.cosmic._devices",
    "ComputeMode": "torchkiln.apps.cosmic._settings",
    "Device": "torchkiln.apps.cosmic._devices",
    "OptimizerKind": "torchkiln.apps.cosmic._settings",
    "PlainDevice": "torchkiln.apps.cosmic._devices",
    "Settings": "torchkiln.apps.cosmic._settings",
    "main": "torchkiln.apps.cosmic._main",
    "read_settings": "torchkiln.apps.cosmic._arguments",
}
__all__ = list(_PLACES)
__getattr__ = lazy_names(__name__, _PLACES)

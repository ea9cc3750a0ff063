"""Torchkiln: shape freely, fire once.

Write ordinary PyTorch, put the loss inside the model, and run whole training steps that were
compiled once for fixed shapes. Names below are imported when first used, so that `import torchkiln`
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchkiln.checkpoints import CheckpointStore as CheckpointStore
    from torchkiln.core import Anchor as Anchor
    from torchkiln.core import Backend as Backend
    from torchkiln.core import CheckpointError as CheckpointError
    from torchkiln.core import DynamicShapeError as DynamicShapeError
    from torchkiln.core import NoLossError as NoLossError
    from torchkiln.core import Options as Options
    from torchkiln.core import OutputMode as OutputMode
    from torchkiln.core import Precision as Precision
    from torchkiln.core import Reduction as Reduction
    from torchkiln.core import ShapeChanged as ShapeChanged
    from torchkiln.core import ShortOfMemory as ShortOfMemory
    from torchkiln.core import TorchkilnError as TorchkilnError
    from torchkiln.core import __version__ as __version__
    from torchkiln.data import DataLoader as DataLoader
    from torchkiln.ops import register_custom_op as register_custom_op
    from torchkiln.runtime import LAMB as LAMB
    from torchkiln.runtime import Program as Program
    from torchkiln.runtime import begin_block as begin_block
    from torchkiln.runtime import identity_loss as identity_loss
    from torchkiln.runtime import inference_model as inference_model
    from torchkiln.runtime import load as load
    from torchkiln.runtime import register_container as register_container
    from torchkiln.runtime import training_model as training_model

_HOMES = {
    "torchkiln.checkpoints": ("CheckpointStore",),
    "torchkiln.core": (
        "Anchor",
        "Backend",
        "CheckpointError",
        "DynamicShapeError",
        "NoLossError",
        "Options",
        "OutputMode",
        "Precision",
        "Reduction",
        "ShapeChanged",
        "ShortOfMemory",
        "TorchkilnError",
        "__version__",
    ),
    "torchkiln.data": ("DataLoader",),
    "torchkiln.ops": ("register_custom_op",),
    "torchkiln.runtime": (
        "LAMB",
        "Program",
        "begin_block",
        "identity_loss",
        "inference_model",
        "load",
        "register_container",
        "training_model",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'torchkiln' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

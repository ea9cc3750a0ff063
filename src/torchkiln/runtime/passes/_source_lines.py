"""Which line of a model is being recorded: the innermost frame that a reader of the model knows."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Collection
from dataclasses import dataclass
from types import CodeType, FrameType

import torch

from torchkiln.core._own_code import OWN_FOLDERS
from torchkiln.core._tracebacks import is_users

_STDLIB = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib"))
_SITE = tuple(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))
_TORCH = os.path.dirname(torch.__file__)
# Our models are models like any other; everything else of ours is machinery.
_MODELS = tuple(os.path.join(folder, "models") for folder in OWN_FOLDERS)
# Where modules call each other: no line of any model.
_CALLING = os.path.join(_TORCH, "nn", "modules", "module.py")
_LAYERS = os.path.join(_TORCH, "nn")
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")
_GRAPH_LAYERS = os.sep + "torch_geometric" + os.sep
# Temporary files in which PyG writes parts of its layers, named after their modules.
_GENERATED_LAYER = "torch_geometric."
# Ranks of frames; a frame of a higher rank is chosen before one further in.
_MODEL, _GRAPH_LAYER, _LAYER, _HIDDEN = 3, 2, 1, 0


@dataclass(frozen=True, slots=True)
class Line:
    """A place in a program."""

    file: str
    number: int
    function: str


def current_line(outermost: Collection[CodeType]) -> Line | None:
    """Return the line that runs now, looking no further out than a frame of one of `outermost`.

    The user's own code comes first, with libraries of whole models; a line inside a layer of PyG or
    torch is told only if nothing else is there.
    """
    best: FrameType | None = None
    best_rank = _HIDDEN
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in outermost:
        rank = _rank(frame.f_code.co_filename) if best_rank < _MODEL else _HIDDEN
        if rank == _MODEL and frame.f_code.co_filename.startswith("<") and not is_users(frame):
            rank = _HIDDEN  # torch makes functions from texts
        if rank > best_rank:
            best, best_rank = frame, rank
        frame = frame.f_back
    if best is None or frame is None:
        return None  # nothing is known outside of a forward
    code = best.f_code
    return Line(code.co_filename, best.f_lineno, code.co_name)


def is_repeated(outermost: Collection[CodeType]) -> bool:
    """Whether `torch.utils.checkpoint` runs something, no further out than one of `outermost`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in outermost:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def is_of_model(line: Line | None) -> bool:
    """Whether a line is the user's own or in a model, not inside a layer that somebody called."""
    return line is not None and _rank(line.file) == _MODEL


@functools.lru_cache(maxsize=4096)
def _rank(file: str) -> int:
    if file == _CALLING or os.path.basename(file).startswith(_GENERATED_LAYER):
        return _HIDDEN
    if file.startswith(_MODELS):
        return _MODEL
    if file.startswith(OWN_FOLDERS):
        return _HIDDEN
    if file.startswith(_LAYERS + os.sep):
        return _LAYER
    if file.startswith(_TORCH + os.sep):
        return _HIDDEN
    if _GRAPH_LAYERS in file:
        return _GRAPH_LAYER
    if file.startswith(_STDLIB) and not file.startswith(_SITE):
        return _HIDDEN
    return _MODEL

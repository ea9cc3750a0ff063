"""`training_step` as it runs while it is recorded: what it logs and reads is noted."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torchmetrics import Metric

from torchkiln.core import CaptureError

# What a module knows of its run: other values in each step, and Python reads them only once.
_OF_THE_RUN = {
    "trainer": "keep numbers that change in a buffer (self.register_buffer), which a hook such as "
    "on_train_batch_start fills",
    "current_epoch": "keep it in a buffer (self.register_buffer), which on_train_epoch_start fills",
    "global_step": "keep it in a buffer (self.register_buffer), which on_train_batch_start fills",
    "logger": "use self.log, or log in on_train_batch_end",
    "loggers": "use self.log, or log in on_train_batch_end",
    "print": "return what you want to see, and print it in on_train_batch_end",
    "optimizers": "read the optimiser in on_train_batch_end",
    "lr_schedulers": "read the schedule in on_train_batch_end",
    "manual_backward": "set self.automatic_optimization = True and return the loss",
    "all_gather": "gather in on_train_batch_end",
}
_LOG = inspect.signature(pl.LightningModule.log)
_PLAIN = (type(None), bool, int, float, str)
# Python's own and Lightning's bookkeeping, which no training_step depends on.
_HIDDEN = ("__", "_parameters", "_buffers", "_modules", "_non_persistent", "_backward", "_forward")


class Recorded:
    """Mixed into the class of a module while its `training_step` is recorded."""

    _torchkiln_notes: Notes

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_THE_RUN:
            raise CaptureError(
                f"training_step uses self.{name}, and its Python code runs only once, when the "
                f"step is compiled; {_OF_THE_RUN[name]}"
            )
        value = super().__getattribute__(name)
        if not name.startswith(_HIDDEN) and name in super().__getattribute__("__dict__"):
            super().__getattribute__("_torchkiln_notes").read(name, value)
        return value

    def __getattr__(self, name: str) -> Any:
        # Sub-modules come from here.
        value = super().__getattr__(name)  # type: ignore[misc]
        if isinstance(value, Metric):
            raise _metric_error(f"self.{name}")
        return value

    def log(self, *args: Any, **kwargs: Any) -> None:
        self._torchkiln_notes.log(*args, **kwargs)


class Notes:
    """What a recorded `training_step` logged, and which plain attributes it read."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.calls: list[dict[str, Any]] = []
        self.reads: dict[str, Any] = {}

    def read(self, name: str, value: Any) -> None:
        # A part that trains in another mode is noticed otherwise, and compiled again.
        if name != "training" and is_plain(value):
            self.reads.setdefault(name, copy_plain(value))

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Note a call of `self.log`; it is made after each step, with that step's value."""
        call = dict(_LOG.bind(None, *args, **kwargs).arguments)
        del call["self"]
        name, value = call["name"], call.pop("value")
        if isinstance(value, Metric):
            raise _metric_error(f"self.log({name!r}, ...)")
        if isinstance(value, Mapping):
            raise CaptureError(f"self.log({name!r}, ...) got a dict; use self.log_dict")
        for key, option in call.items():
            if not is_plain(option):
                raise CaptureError(
                    f"self.log({name!r}, {key}=...) got a {type(option).__name__}, which a "
                    "compiled step cannot keep; pass a number or a name, or log in "
                    "on_train_batch_end"
                )
        tensor = value if isinstance(value, Tensor) else torch.tensor(value)
        # As Lightning does: what is logged needs no gradient, and may be changed afterwards.
        self.values.append(tensor.detach().clone())
        self.calls.append(call)


@contextlib.contextmanager
def recorded(module: pl.LightningModule) -> Iterator[Notes]:
    """Let `module` note what its `training_step` does that concerns Lightning.

    Raises:
        CaptureError: at the end, if Python values of the module were changed.
    """
    notes = Notes()
    before, counts = _state_of(module), _metric_counts(module)
    original = type(module)
    vars(module)["_torchkiln_notes"] = notes
    metaclass: Any = type(original)
    # The mixin comes first: it looks before the module answers.
    module.__class__ = metaclass(original.__name__, (Recorded, original), {})
    try:
        yield notes
    except Exception as error:
        # A metric's own code often fails first, with an error that does not name it.
        if _metric_counts(module) != counts:
            raise _metric_error("training_step") from error
        raise
    finally:
        module.__class__ = original
        del vars(module)["_torchkiln_notes"]
    if _metric_counts(module) != counts:
        raise _metric_error("training_step")
    after = _state_of(module)
    changed = sorted(name for name in before | after if before.get(name) != after.get(name))
    if changed:
        raise CaptureError(
            f"training_step changes self.{changed[0]}, and its Python code runs only once, when "
            "the step is compiled; return what you want to keep, and keep it in "
            "on_train_batch_end(self, outputs, batch, batch_idx), or use a buffer"
        )


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, names and containers of them: it can be compared."""
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(entry) for key, entry in value.items())
    return False


def copy_plain(value: Any) -> Any:
    """Return a copy that nobody else changes."""
    if isinstance(value, list | tuple):
        return [copy_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: copy_plain(entry) for key, entry in value.items()}
    return value


def _state_of(module: pl.LightningModule) -> dict[str, Any]:
    """Return what tells whether attributes are set anew, and containers grow."""
    state = {}
    for name, value in vars(module).items():
        if name.startswith(_HIDDEN) or name == "_torchkiln_notes":
            continue
        is_container = isinstance(value, list | dict | set)
        state[name] = (id(value), len(value) if is_container else 0)
    modes = tuple(child.training for child in module.modules())
    return {**state, "training": modes}


def _metric_counts(module: pl.LightningModule) -> list[int]:
    return [child.update_count for child in module.modules() if isinstance(child, Metric)]


def _metric_error(where: str) -> CaptureError:
    return CaptureError(
        f"{where}: a metric of torchmetrics keeps its state in Python, which a compiled step does "
        "not change; return predictions and labels in the dict of training_step, and update the "
        "metric in on_train_batch_end(self, outputs, batch, batch_idx)"
    )

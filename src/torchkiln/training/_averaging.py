"""An exponential moving average of the weights."""

from __future__ import annotations

from typing import final

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from torchkiln.core import OptionsError


@final
class WeightAverage:
    """A copy of a module whose weights follow it slowly; buffers are copied as they are.

    Args:
        module: It is copied.
        decay: Share of the old average that one weight update keeps; usual are 0.99 to 0.9999.
        updates_per_call: Weight updates between two calls of `update`, which sees the last only:
            `options.device_iterations` of the training program.

    Raises:
        OptionsError: `decay` is not at least 0 and below 1.
    """

    def __init__(self, module: nn.Module, decay: float, *, updates_per_call: int = 1) -> None:
        if not 0 <= decay < 1:
            raise OptionsError(
                f"decay must be at least 0 and below 1, got {decay}; usual are 0.99 to 0.9999"
            )
        self.decay = decay
        self.updates_per_call = updates_per_call
        self._source = module
        # torch gives it no types.
        average = get_ema_multi_avg_fn(decay**updates_per_call)  # type: ignore[no-untyped-call]
        self._averaged = AveragedModel(module, multi_avg_fn=average)

    @property
    def source(self) -> nn.Module:
        """The module that is followed."""
        return self._source

    @property
    def module(self) -> nn.Module:
        """The copy; until the first update it has the weights that the module had then."""
        copy: nn.Module = self._averaged.module
        return copy

    @property
    def num_updates(self) -> int:
        """How often `update` was called; the first one copies."""
        return int(self._averaged.n_averaged)

    @num_updates.setter
    def num_updates(self, count: int) -> None:
        self._averaged.n_averaged.fill_(count)

    def update(self) -> None:
        """Take the module's present weights into the average."""
        self._averaged.update_parameters(self._source)

"""The optimiser of a training model: what is checked, recorded and named when it is taken."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from poptorch._optim_base import Optimizer
from poptorch._optimizer_checks import AttributeTracker, check_optimizer
from poptorch.enums import MeanReductionStrategy
from poptorch.options import Options

_STRATEGY = "meanAccumulationAndReplicationReductionStrategy"


class OptimizerLink:
    """Holds the optimiser that a training model uses at present."""

    def __init__(self, options: Options) -> None:
        self.optimizer: torch.optim.Optimizer | None = None
        self._options = options
        self._tracker = AttributeTracker(options.relax_optimizer_attributes_checks)

    def check(self, optimizer: torch.optim.Optimizer, compiled: bool) -> None:
        """Refuse an optimiser that the original refuses; nothing is changed by that.

        Raises:
            AssertionError: for an unsupported type or unequal groups.
            ValueError: for amsgrad, or half sums that a compiled model does not keep.
        """
        check_optimizer(optimizer)
        if compiled and self._needs_running_mean(optimizer):
            raise ValueError(
                "accum_type=torch.float16 needs MeanReductionStrategy.Running, but the model is "
                "already compiled; set the strategy in its options, or destroy() the model first"
            )

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Use a checked optimiser from now on."""
        self._tracker.check(optimizer)
        if self._needs_running_mean(optimizer):
            # The executor's own copy: the user's object stays as it is.
            self._options.Training._values[_STRATEGY] = MeanReductionStrategy.Running
        if self.optimizer is not optimizer:
            self.release()
        self.optimizer = optimizer

    def bind(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Let the optimiser's `state_dict` name tensors as the compiled model does."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer._bind({parameter: name for name, parameter in named_parameters})

    def release(self) -> None:
        """Take the names back."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer._bind(None)

    def _needs_running_mean(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._options.Training._values[_STRATEGY] == MeanReductionStrategy.Running:
            return False
        half_sums = getattr(optimizer, "accum_type", torch.float32) == torch.float16
        return half_sums and not getattr(optimizer, "use_combined_accum", False)

"""The weights with the smallest validation error of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from torch import Tensor, nn

from torchkiln.core import instant

State = dict[str, Tensor]


@final
class BestWeights:
    """A copy of a network's weights, made whenever a validation error is smaller than all before.

    Args:
        network: Whose weights are validated, live.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._weights: State = {}
        self._error = math.inf
        self._epoch: int | None = None

    @property
    def epoch(self) -> int | None:
        """The epoch after which the weights were copied, from 0; None: never."""
        return self._epoch

    def is_improved_by(self, error: float | None) -> bool:
        """Tell whether an error is smaller than all before; NaN and None never are."""
        return error is not None and error < self._error

    def offer(self, error: float | None, epoch: int) -> None:
        """Copy the present weights if they are the best so far.

        Args:
            error: Of the present weights; None: they were not validated.
            epoch: That was trained last, from 0.
        """
        if error is None or not self.is_improved_by(error):
            return
        self._error, self._epoch = error, epoch
        self._weights = _copy(self._network)
        instant("validation", "best weights so far")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the network its best weights for a while; without any it keeps its own."""
        if self._epoch is None:
            yield
            return
        present = _copy(self._network)
        self._network.load_state_dict(self._weights)
        try:
            yield
        finally:
            self._network.load_state_dict(present)

    def to_checkpoint(self) -> tuple[State, dict[str, Any] | None]:
        """Return tensors, and facts in JSON types."""
        if self._epoch is None:
            return {}, None
        return self._weights, {"epoch": self._epoch, "error": self._error}

    def restore(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any] | None) -> None:
        """Take over what `to_checkpoint` returned; facts are None in earlier checkpoints."""
        if facts is not None:
            self._weights = dict(weights)
            self._error, self._epoch = float(facts["error"]), int(facts["epoch"])


def _copy(network: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}

"""Buffers that every process changes for itself, such as BatchNorm's, and their average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from torchkiln.training._ranks import Ranks

Buffers = dict[str, Tensor]


@final
class RankBuffers:
    """The buffers of modules that several processes train together.

    Weights are the same in all processes. Buffers follow what each process has seen: a model that
    is judged or kept has the average of all, and training goes on with each one's own.

    Args:
        ranks: The processes.
        modules: By a name of their own.
    """

    def __init__(self, ranks: Ranks, modules: Mapping[str, nn.Module]) -> None:
        self._ranks = ranks
        self._modules = dict(modules) if ranks.size > 1 else {}

    def own(self) -> Buffers:
        """Return copies of this process' buffers; none if it is alone."""
        return {name: buffer.detach().cpu().clone() for name, buffer in self._live()}

    def restore(self, buffers: Mapping[str, Tensor]) -> None:
        """Give this process' buffers the values that there are for them."""
        for name, buffer in self._live():
            if name in buffers:
                with torch.no_grad():
                    buffer.copy_(buffers[name])

    @contextmanager
    def averaged(self, by_rank: Sequence[Buffers] | None = None) -> Iterator[None]:
        """Let modules have averaged buffers meanwhile, the same in all processes.

        Args:
            by_rank: What `own` returned in each process, if that is known.
        """
        own = self.own()
        if not own:
            yield
            return
        self.restore(average_of(self._ranks.gather(own) if by_rank is None else by_rank))
        try:
            yield
        finally:
            self.restore(own)

    def settle(self) -> None:
        """Give modules averaged buffers for good: nothing is trained any more."""
        own = self.own()
        if own:
            self.restore(average_of(self._ranks.gather(own)))

    def _live(self) -> Iterator[tuple[str, Tensor]]:
        # Anew each time: forward may replace buffers by other tensors.
        for part, module in self._modules.items():
            for name, buffer in module.named_buffers():
                yield f"{part}/{name}", buffer


def average_of(by_rank: Sequence[Buffers]) -> Buffers:
    """Return the mean of each buffer over all processes; counters and flags are those of rank 0."""
    return {name: _mean([buffers[name] for buffers in by_rank]) for name in by_rank[0]}


def differing(by_rank: Sequence[Buffers]) -> list[Buffers]:
    """Return the buffers of each process, without those that are the same in all."""
    names = [name for name in by_rank[0] if not _is_same([part[name] for part in by_rank])]
    return [{name: part[name] for name in names} for part in by_rank]


def _mean(values: list[Tensor]) -> Tensor:
    first = values[0]
    # What is the same everywhere keeps its bits.
    if not first.is_floating_point() or _is_same(values):
        return first
    return torch.stack([value.double() for value in values]).mean(dim=0).to(first.dtype)


def _is_same(values: list[Tensor]) -> bool:
    first = values[0]
    return all(torch.equal(value, first) for value in values[1:])

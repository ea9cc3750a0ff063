"""What the stages of a pipeline send to each other, under which tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from torchkiln.distributed import Group
from torchkiln.distributed._transfers import Transfer
from torchkiln.runtime.pipeline._parts import Receive, StagePart


@dataclass(frozen=True, slots=True)
class OutputForm:
    """An output of the program: which stage makes it, under which name, and its form."""

    stage: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@final
class Routes:
    """Sends results of a stage where they are needed, and receives those of others.

    Every result has a tag of its own, the same in all stages. Messages of one tag between two
    stages keep the order of micro-batches, so nothing can be taken for something else.

    Args:
        parts: Of all stages.
        stage: The one that this process runs.
        group: All processes.
        first_rank: Of the process that runs stage 0 of the same pipeline.
        device: Where tensors are.
    """

    def __init__(
        self,
        parts: Sequence[StagePart],
        stage: int,
        group: Group,
        first_rank: int,
        device: torch.device,
    ) -> None:
        self.stage = stage
        self.num_stages = len(parts)
        self._group = group
        self._first_rank = first_rank
        self._device = device
        names = {
            (entry, send.name)
            for part in parts
            for entry, sends in part.sends.items()
            for send in sends
        }
        self._tags = {key: tag for tag, key in enumerate(sorted(names))}
        self._free_tag = len(self._tags)
        own = parts[stage]
        self._receives = own.receives
        # By entry: name, where it goes, and the form in which it is expected there.
        self._sends = {
            entry: [
                (send.name, to, _expected(parts[to], entry, send.name))
                for send in sends
                for to in send.to
            ]
            for entry, sends in own.sends.items()
        }

    def receive(self, entry: str) -> dict[str, Transfer]:
        """Begin to receive what the next run of an entry needs, by name."""
        return {
            form.name: self._begin_receiving(form, self._tags[entry, form.name])
            for form in self._receives.get(entry, ())
        }

    def _begin_receiving(self, form: Receive, tag: int) -> Transfer:
        room = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=self._device)
        return self._group.receive(room, self.rank_of(form.stage), tag)

    def send(self, entry: str, values: dict[str, Tensor]) -> list[tuple[int, Transfer]]:
        """Begin to send what a run of an entry made, to the stages that are returned with it."""
        sent = []
        for name, to, form in self._sends.get(entry, ()):
            tensor = _in_form(values[name], form)
            transfer = self._group.send(tensor, self.rank_of(to), self._tags[entry, name])
            sent.append((to, transfer))
        return sent

    def room_for(self, form: OutputForm) -> Tensor:
        """Return memory for an output that another stage makes."""
        return torch.empty(form.shape, dtype=form.dtype, device=self._device)

    def tell(self, tensor: Tensor, to: int) -> Transfer:
        """Begin to send something besides results to a stage."""
        return self._group.send(tensor, self.rank_of(to), self._free_tag + self.stage)

    def hear(self, tensor: Tensor, stage: int) -> Transfer:
        """Begin to receive what a stage tells."""
        return self._group.receive(tensor, self.rank_of(stage), self._free_tag + stage)

    def rank_of(self, stage: int) -> int:
        """Return the process that runs a stage of this pipeline."""
        return self._first_rank + stage


def _expected(part: StagePart, entry: str, name: str) -> Receive:
    return next(form for form in part.receives[entry] if form.name == name)


def _in_form(tensor: Tensor, form: Receive) -> Tensor:
    """Return the tensor with the strides that the other stage expects."""
    tensor = tensor.detach()
    if tuple(tensor.shape) != form.shape or tensor.dtype != form.dtype:
        raise AssertionError(f"{form.name} is {tensor.shape} {tensor.dtype}, expected {form}")
    if tensor.stride() == form.stride:
        return tensor
    copy = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=tensor.device)
    return copy.copy_(tensor)

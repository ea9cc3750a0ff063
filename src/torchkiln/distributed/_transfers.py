"""`Transfer`: a tensor on its way from one process to another, while both do something else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import final

import torch.distributed as dist
from torch import Tensor


@final
class Transfer:
    """What was sent, or will be received; holds its memory until it has arrived.

    Args:
        work: What the library does; None: there is nothing to move.
        tensor: Its memory.
        talking: Counts the time of waiting, and explains a failure.
    """

    def __init__(
        self,
        work: dist.Work | None,
        tensor: Tensor,
        talking: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._work = work
        self._talking = talking
        self.tensor = tensor

    def wait(self) -> Tensor:
        """Return the tensor when it has arrived: at this process, or at the other one.

        Raises:
            DistributedError: A process is lost, or does not answer in time.
        """
        if self._work is not None:
            with self._talking():
                self._work.wait()
            self._work = None
        return self.tensor


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor one after the other, as they lie in its memory.

    Raises:
        ValueError: They do not lie one after the other.
    """
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    steps = sorted((step, size) for size, step in sizes if size > 1)
    expected = 1
    for step, size in steps:
        if step != expected:
            raise ValueError(
                f"a tensor of shape {list(tensor.shape)} with strides {list(tensor.stride())} has "
                "gaps or overlaps in memory, and cannot travel; send a copy"
            )
        expected *= size
    return tensor.detach().as_strided((tensor.numel(),), (1,))

"""What this machine can do: floating-point operations and bytes a second, measured."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

from torchkiln.profiling.graph._values import Peaks

_SIDE = 1024
# Larger than caches, small enough for any machine.
_ELEMENTS = 32 * 2**20
_SECONDS = 0.15


def measured_peaks() -> Peaks:
    """Return the peaks with the present number of threads; measured once, in half a second."""
    return _measure(torch.get_num_threads())


@functools.cache
def _measure(threads: int) -> Peaks:
    with torch.no_grad():
        # A generator, dtype and device of its own: the defaults belong to the user's program.
        generator = torch.Generator().manual_seed(0)
        make = functools.partial(torch.rand, generator=generator, dtype=torch.float32, device="cpu")
        a, b = make(_SIDE, _SIDE), make(_SIDE, _SIDE)
        product = torch.empty_like(a)
        seconds = _best(lambda: torch.mm(a, b, out=product))
        source = make(_ELEMENTS)
        target = torch.zeros_like(source)
        moved = _best(lambda: torch.add(source, 1.0, out=target))
    # One read and one write; what the processor reads before it writes is not counted, as in
    # the bytes of a call.
    return Peaks(2 * _SIDE**3 / seconds / 1e9, 2 * 4 * _ELEMENTS / moved / 1e9)


def _best(run: Callable[[], object]) -> float:
    run()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best

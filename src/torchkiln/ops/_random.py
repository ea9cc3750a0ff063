"""Dropout masks at memory speed, from torch's own generator and with torch's own bits.

Eager PyTorch fills a mask sample by sample (about 20 ns each), which dominates models with
dropout. The operator here draws the same numbers from the same generator in blocks. Whether it
does is checked once on the machine at hand; where torch uses another algorithm, torch's is kept.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from torchkiln.ops._native import load_native

# Below this, calling a Python operator costs more than it saves.
MIN_FAST_NUMEL = 4096


@torch.library.custom_op(
    "torchkiln::bernoulli", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def bernoulli(token: Tensor | None, size: list[int], p: float) -> tuple[Tensor, Tensor]:
    """Return float32 zeros and ones on the CPU, 1 with probability `p`, and a token.

    A compiler may reorder operations that do not depend on each other, but the generator gives its
    numbers in order: handing each call the token of the one before keeps the order of the program.
    """
    out = torch.empty(size)
    if not _fill(out, p):
        out.bernoulli_(p)
    return out, torch.empty(1)


@bernoulli.register_fake
def _(token: Tensor | None, size: list[int], p: float) -> tuple[Tensor, Tensor]:
    return torch.empty(size), torch.empty(1)


def _fill(out: Tensor, p: float) -> bool:
    """Fill `out` natively; False if the native helper is missing."""
    function = _function()
    if function is None:
        return False
    generator = torch.default_generator
    state = generator.get_state()
    function(state.data_ptr(), out.data_ptr(), out.numel(), p)
    generator.set_state(state)
    return True


@functools.cache
def _function() -> ctypes._NamedFuncPointer | None:
    library = load_native("_mt19937")
    if library is None:
        return None
    function = library.torchkiln_bernoulli
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_double]
    function.restype = None
    return function


@functools.cache
def bernoulli_is_exact() -> bool:
    """Whether the operator draws what `Tensor.bernoulli_` draws on this machine."""
    saved = torch.get_rng_state()
    try:
        for count, p in ((1, 0.5), (10_001, 0.9), (5_000, 0.123)):
            torch.manual_seed(count)
            expected, state = torch.empty(count).bernoulli_(p), torch.get_rng_state()
            torch.manual_seed(count)
            out = torch.empty(count)
            if not _fill(out, p):
                return False
            if not (torch.equal(out, expected) and torch.equal(torch.get_rng_state(), state)):
                return False
        return True
    finally:
        torch.set_rng_state(saved)

"""Random numbers inside compiled programs: torch's own, in the program's order, and fast.

Eager PyTorch draws in the order of the program and fills tensors in the order of memory. A compiler
that sees independent operations may reorder them and may choose another layout; both give other
numbers. `draw` carries a token from call to call, which fixes the order, and allocates with the
strides that eager would use, which fixes the places.

Large Bernoulli masks (dropout) are drawn in blocks: torch takes about 20 ns a sample, one by one.
Whether the block generator gives torch's bits is checked once on the machine at hand; where torch
uses another algorithm, torch's own is called.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchkiln.ops._native import load_native

# The C file with the block generator.
BERNOULLI_HELPER = "_mt19937"
# Below this, reading and writing the generator's state costs more than it saves.
_MIN_BLOCK_NUMEL = 1024

Fill = Callable[[Tensor, Tensor | None, list[float]], object]

_FILLS: dict[str, Fill] = {
    "bernoulli": lambda out, source, params: fill_bernoulli(out, params[0]),
    "bernoulli_of": lambda out, source, params: out.bernoulli_(_given(source)),
    "uniform": lambda out, source, params: out.uniform_(*params),
    "normal": lambda out, source, params: out.normal_(*params),
    "exponential": lambda out, source, params: out.exponential_(*params),
    "randint": lambda out, source, params: out.random_(int(params[0]), int(params[1])),
    "randperm": lambda out, source, params: torch.randperm(out.numel(), out=out),
}


@torch.library.custom_op(
    "torchkiln::draw", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def draw(
    token: Tensor | None,
    kind: str,
    source: Tensor | None,
    size: list[int],
    stride: list[int],
    dtype: torch.dtype,
    params: list[float],
) -> tuple[Tensor, Tensor]:
    """Return a CPU tensor of random numbers, and the token for the next draw of the program."""
    out = torch.empty_strided(size, stride, dtype=dtype)
    _FILLS[kind](out, source, params)
    return out, torch.empty(1)


@draw.register_fake
def _(
    token: Tensor | None,
    kind: str,
    source: Tensor | None,
    size: list[int],
    stride: list[int],
    dtype: torch.dtype,
    params: list[float],
) -> tuple[Tensor, Tensor]:
    return torch.empty_strided(size, stride, dtype=dtype), torch.empty(1)


def _given(source: Tensor | None) -> Tensor:
    assert source is not None, "this kind of draw needs a tensor of probabilities"
    return source


def fill_bernoulli(out: Tensor, p: float) -> Tensor:
    """Do `out.bernoulli_(p)`, in blocks where that gives the same bits."""
    large = draws_in_blocks("bernoulli", out.shape, out.dtype)
    reach = 1 + sum((n - 1) * step for n, step in zip(out.shape, out.stride(), strict=True))
    dense = reach == out.numel()
    if large and dense and bernoulli_is_exact() and _fill_blocks(out, p):
        return out
    return out.bernoulli_(p)


def draws_in_blocks(kind: str, size: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether numbers of this kind may be drawn by the block generator."""
    large = math.prod(size) >= _MIN_BLOCK_NUMEL
    return kind == "bernoulli" and dtype == torch.float32 and large


def _fill_blocks(out: Tensor, p: float) -> bool:
    """Fill the memory of `out` natively; False if the native helper is missing."""
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
    library = load_native(BERNOULLI_HELPER)
    if library is None:
        return None
    function = library.torchkiln_bernoulli
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_double]
    function.restype = None
    return function


@functools.cache
def bernoulli_is_exact() -> bool:
    """Whether the block generator draws what `Tensor.bernoulli_` draws on this machine."""
    saved = torch.get_rng_state()
    try:
        for count, p in ((1, 0.5), (10_001, 0.9), (5_000, 0.123)):
            torch.manual_seed(count)
            expected, state = torch.empty(count).bernoulli_(p), torch.get_rng_state()
            torch.manual_seed(count)
            out = torch.empty(count)
            if not _fill_blocks(out, p):
                return False
            if not (torch.equal(out, expected) and torch.equal(torch.get_rng_state(), state)):
                return False
        return True
    finally:
        torch.set_rng_state(saved)

"""Tensors that have shapes but no values: what forward runs on while it is recorded."""

from __future__ import annotations

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)

# torch: the exceptions carry the operator as `func`, and are raised at the line of the operation.
# for: what cannot be static is an error at the user's own line, with the rewrite.
__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedOperatorException",
    "fake_mode",
    "fake_mode_with_sizes",
    "unset_fake_temporarily",
]


def fake_mode() -> FakeTensorMode:
    """Return a mode in which sizes are plain numbers and values do not exist.

    torch: without a `ShapeEnv`, an operation whose sizes depend on values raises; `from_tensor`
        makes stand-ins that keep shape, strides, dtype, device and shared memory; real tensors that
        forward meets are let in.
    for: static or an error, never a guess.
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_mode_with_sizes() -> FakeTensorMode:
    """Return a mode for inputs that are handed to Inductor.

    torch: Inductor asks the inputs' mode for a `ShapeEnv`, also if all sizes are numbers.
    for: native code from a graph that was recorded in another mode.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

"""Operations for use inside forward; outside an executor they act as plain functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from poptorch import _context
from poptorch._errors import Error
from poptorch._option_store import require
from poptorch.enums import MatMulSerializationMode, OverlapMode
from torchkiln import ops, runtime
from torchkiln.data import flatten

_REDUCTIONS = ("sum", "mean", "none")


def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """Return `x` reduced ("sum", "mean" or "none") and marked as the loss to differentiate."""
    require(reduction in _REDUCTIONS, "Unsupported reduction", reduction, "sum, mean or none")
    return runtime.identity_loss(x, reduction)


def ipu_print_tensor(
    tensor: Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> Tensor:
    """Return `tensor`; whenever it is computed, write it (and later its gradient) to stderr.

    Raises:
        KeyError: if `float_format` is not auto, fixed, scientific or none.
    """
    require_tensor("ipu_print_tensor", tensor)
    try:
        style = ops.PrintFormat(
            summarise_threshold,
            edge_items,
            max_line_width,
            digits,
            float_format,
            separator,
            open_bracket,
            close_bracket,
        )
    except ValueError as error:
        raise KeyError(str(error)) from error
    return ops.print_tensor(tensor, title, with_gradient=print_gradient, style=style)


def nop(tensor: Tensor) -> Tensor:
    """Return a copy of `tensor`."""
    require_tensor("nop", tensor)
    return tensor.clone()


def for_loop(count: int, body: Callable[..., list[Tensor]], inputs: list[Tensor]) -> list[Tensor]:
    """Return the tensors after applying `body` `count` times; the loop is unrolled.

    Raises:
        ValueError: if `inputs` is not a list of tensors.
        Error: in a training model.
    """
    _require_tensor_list(inputs)
    _require_inference("for_loop")
    with _as_error():
        return ops.repeat(count, body, inputs)


def cond(
    condition: Tensor,
    then_body: Callable[..., list[Tensor]],
    then_inps: list[Tensor],
    else_body: Callable[..., list[Tensor]],
    else_inps: list[Tensor],
) -> list[Tensor]:
    """Return the results of the branch that `condition` chooses.

    A program computes both branches and selects; outside one, only the chosen branch runs.

    Raises:
        ValueError: if the inputs of a branch are not a list of tensors.
        Error: in a training model.
    """
    _require_tensor_list(then_inps)
    _require_tensor_list(else_inps)
    _require_inference("cond")
    if not runtime.is_inside_program():
        body, inputs = (then_body, then_inps) if bool(condition) else (else_body, else_inps)
        results = body(*(tensor.clone() for tensor in inputs))
        return [results] if isinstance(results, Tensor) else list(results)
    with _as_error():
        return ops.choose(condition, then_body, then_inps, else_body, else_inps)


def dynamic_slice(tensor: Tensor, dim: int, start: Tensor, size: int, step: int) -> Tensor:
    """Return `tensor[start : start + size : step]` along `dim`; only `start` is a tensor."""
    require_tensor("dynamic_slice", tensor)
    require_tensor("dynamic_slice", start)
    with _as_error():
        return ops.dynamic_slice(tensor, dim, start, size, step)


def dynamic_update(input: Tensor, src: Tensor, dim: int, start: Tensor, size: int) -> Tensor:
    """Return a copy of `input` with `src` written at `start : start + size` along `dim`."""
    for tensor in (input, src, start):
        require_tensor("dynamic_update", tensor)
    with _as_error():
        return ops.dynamic_update(input, src, dim, start, size)


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return the tensors; they are kept where activations are recomputed.

    Recomputation is on with `options._Popart.set("autoRecomputation", 4)` (any kind but 0): what
    lies between two checkpoints is then computed again in backward.

    Raises:
        ValueError: for anything that is not a tensor.
    """
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        kept = [recomputationCheckpoint(tensor) for tensor in tensors[0]]
        return type(tensors[0])(kept)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ValueError(f"recomputationCheckpoint takes tensors, got {type(tensor).__name__}")
    tensors = tuple(runtime.keep_activation(tensor) for tensor in tensors)
    return tensors[0] if len(tensors) == 1 else tensors


def serializedMatMul(
    lhs: Tensor,
    rhs: Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> Tensor:
    """Return `lhs @ rhs`; how the original would cut it up is checked and forgotten."""
    require(isinstance(lhs, Tensor), "Unexpected type for lhs", lhs, Tensor)
    require(isinstance(rhs, Tensor), "Unexpected type for rhs", rhs, Tensor)
    require(
        isinstance(mode, MatMulSerializationMode), "Unexpected mode", mode, MatMulSerializationMode
    )
    require(isinstance(factor, int), "Unexpected type for factor", factor, int)
    require(isinstance(keep_precision, bool), "Unexpected keep_precision", keep_precision, bool)
    return torch.matmul(lhs, rhs)


def set_available_memory(tensor: Tensor, available_memory_proportion: float) -> Tensor:
    """Return `tensor`; the proportion (0 to 1) is only checked."""
    require_tensor("set_available_memory", tensor)
    value = available_memory_proportion
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise Error(f"available_memory_proportion must be a number from 0 to 1, got {value!r}")
    return tensor


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Return the structure of tensors; the mode is only checked."""
    return _checked_overlap("set_overlap_for_input", input_tensors, mode)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Return the structure of tensors; the mode is only checked."""
    return _checked_overlap("set_overlap_for_output", output_tensors, mode)


def ctc_beam_search_decoder(
    probs: Tensor,
    lengths: Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, lengths and labels of the most probable sequences.

    Args:
        probs: Log-probabilities, [num_steps, batch, num_classes].
        lengths: Valid steps of each example, [batch].
        blank: The class that separates labels.
        beam_width: Prefixes kept after each step.
        top_paths: Sequences to return.
    """
    require_tensor("ctc_beam_search_decoder", probs)
    require_tensor("ctc_beam_search_decoder", lengths)
    with _as_error():
        return ops.ctc_beam_search(probs, lengths, blank, beam_width, top_paths)


def fps(src: Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> Tensor:
    """Return indices of points far from each other; `ptr` bounds the examples."""
    require_tensor("fps", src)
    with _as_error():
        return ops.farthest_points(src, ptr, ratio, random_start)


def nearest(
    x: Tensor,
    y: Tensor,
    batch_x: list[int] | Tensor | None = None,
    batch_y: list[int] | Tensor | None = None,
) -> Tensor:
    """Return, for each row of `x`, the index of the closest row of `y` of the same example."""
    require_tensor("nearest", x)
    require_tensor("nearest", y)
    with _as_error():
        return ops.nearest(x, y, batch_x, batch_y)


class CPU:
    """A Python function or module that a program calls on the host; inference only.

    Args:
        layer_to_call: Takes and returns CPU tensors. Result sizes may depend on input sizes only.
        ID: A name that no other `CPU` of the process uses at the same time.
    """

    def __init__(self, layer_to_call: Callable[..., Any] | nn.Module, ID: str) -> None:
        if isinstance(layer_to_call, nn.Module):
            layer_to_call.requires_grad_(False)
        elif not callable(layer_to_call):
            raise Error(f"CPU takes a function or module, got {type(layer_to_call).__name__}")
        self._layer_to_call = layer_to_call
        self._id = ID
        ops.register_host_function(ID, layer_to_call)

    def __call__(self, *args: Tensor) -> Tensor | list[Tensor]:
        _require_inference("CPU")
        for tensor in args:
            require_tensor("CPU", tensor)
        # Another process, or a copy, may hold the object without having constructed it.
        ops.register_host_function(self._id, self._layer_to_call)
        results = ops.host_call(self._id, args)
        return results[0] if len(results) == 1 else results


def isRunningOnIpu() -> bool:
    """Return whether this is forward of a wrapped model, being recorded or run."""
    return runtime.is_inside_program()


def require_tensor(name: str, value: Any) -> None:
    """Raise `Error` if `value` is not a tensor."""
    if not isinstance(value, Tensor):
        raise Error(f"{name} takes tensors, got {type(value).__name__}")


def _require_tensor_list(inputs: Any) -> None:
    if not isinstance(inputs, list):
        raise ValueError(f"Object is not list: got {type(inputs).__name__}; pass [tensor, ...]")
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"Object contained in list at index {index} is not torch.tensor: "
                f"{type(tensor).__name__}"
            )


def _require_inference(name: str) -> None:
    run = _context.current()
    if run is not None and run.training:
        raise Error(f"poptorch.{name}() is only supported in inference models")


def _checked_overlap(name: str, tensors: Any, mode: OverlapMode) -> Any:
    if not isinstance(mode, OverlapMode):
        raise Error(f"{name} takes a poptorch.OverlapMode, got {mode!r}")
    if not flatten(tensors)[0]:
        raise Error(f"{name} takes a tensor or a structure of tensors, got {tensors!r}")
    return tensors


@contextlib.contextmanager
def _as_error() -> Iterator[None]:
    """Raise `Error` where an operation refuses its arguments."""
    try:
        yield
    except ValueError as error:
        raise Error(str(error)) from error

"""The one call form a program accepts: names, structure, shapes, dtypes, constants."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import (
    ArgumentError,
    BatchSizeError,
    ExecutableError,
    Options,
    ShapeChanged,
    warn_user,
)
from torchkiln.data import flatten, rebuild
from torchkiln.data._structure import ConstantNode, MappingNode, TensorNode, paths
from torchkiln.runtime.call._comparison import REMEDY, argument_name, collect, compare
from torchkiln.runtime.call._metadata import node_from_json, node_to_json

_UNCHANGING = (type(None), bool, int, float, str)


class BadArguments(ArgumentError):  # noqa: N818 - an ArgumentError that says which kind
    """With its kind: too_many, unknown, duplicate, missing, empty, layout or meta."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def bind_arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments by name, signature defaults filled in, as Python would match them."""
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_args = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_kwargs = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if len(args) > len(positional) and not takes_args:
        raise BadArguments(
            "too_many",
            f"forward takes {len(positional)} positional arguments but {len(args)} were given; "
            f"its signature is {signature}",
        )
    for name in kwargs:
        if name not in signature.parameters and not takes_kwargs:
            raise BadArguments(
                "unknown", f"forward has no argument {name!r}; its signature is {signature}"
            )
        by_position = [p.name for p in positional[: len(args)] if p.kind is not p.POSITIONAL_ONLY]
        if name in by_position:
            raise BadArguments(
                "duplicate", f"argument {name!r} is given twice, by position and by keyword"
            )
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        given = {p.name for p in positional[: len(args)]} | set(kwargs)
        missing = [
            p.name
            for p in parameters
            if p.name not in given
            and p.default is p.empty
            and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if missing and not (takes_args or takes_kwargs):
            raise BadArguments(
                "missing", f"Mandatory parameter {missing[0]} missing; forward is {signature}"
            ) from None
        raise BadArguments("missing", str(error)) from None
    bound.apply_defaults()
    return dict(bound.arguments)


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What native code takes for granted about one input."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    memory_format: torch.memory_format


class Signature:
    """A call that was compiled, and the check that another one is like it."""

    def __init__(
        self, forward: Callable[..., Any], args: Any, kwargs: Any, options: Options
    ) -> None:
        self._signature = inspect.signature(forward)
        self._factor = options.combined_factor
        self._call_form = (len(args), frozenset(kwargs))
        arguments = bind_arguments(self._signature, args, kwargs)
        self._names = frozenset(_explicit_names(self._signature, args, kwargs))
        self._with_defaults = _tensor_defaults(self._signature)
        tensors, self.node = flatten(arguments)
        names = [argument_name(path) for path in paths(self.node)]
        self.forms = [_form(name, t) for name, t in zip(names, tensors, strict=True)]
        self._check_batch(options)
        self._warned = False
        self.copied: list[tuple[int, Tensor]] = []
        self._only_tensors = self._takes_only_tensors()

    def _takes_only_tensors(self) -> bool:
        """Whether the call is tensors by position and nothing else: it is then checked faster.

        Parameters after them keep their defaults, plain values that no call can change.
        """
        count, keys = self._call_form
        kinds = {parameter.kind for parameter in self._signature.parameters.values()}
        return (
            not keys
            and count == len(self.forms)
            and kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}
            and isinstance(self.node, MappingNode)
            and len(self.node.children) == len(self._signature.parameters)
            and all(isinstance(child, TensorNode) for child in self.node.children[:count])
            and all(
                isinstance(child, ConstantNode) and type(child.value) in _UNCHANGING
                for child in self.node.children[count:]
            )
        )

    def _fits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the call can be taken as it is, the case of almost every call."""
        if not self._only_tensors or kwargs or len(args) != len(self.forms):
            return False
        return all(
            isinstance(tensor, Tensor)
            and tensor.dtype is form.dtype
            and tensor.shape == form.shape
            and tensor.layout is torch.strided
            and not tensor.is_meta
            and not tensor.is_neg()
            and not tensor.is_conj()
            and tensor.is_contiguous(memory_format=form.memory_format)
            for form, tensor in zip(self.forms, args, strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the call form as plain values; arguments that are objects cannot be described."""
        count, keys = self._call_form
        try:
            arguments = node_to_json(self.node)
        except TypeError as error:
            raise ExecutableError(
                f"an argument cannot be described in JSON ({error}); pass tensors, plain values, "
                "tuples, lists or dicts to a program that is to be exported"
            ) from error
        return {
            "num_positional": count,
            "keywords": sorted(keys),
            "names": sorted(self._names),
            "arguments": arguments,
            "tensors": [
                {
                    "name": form.name,
                    "shape": list(form.shape),
                    "dtype": str(form.dtype).removeprefix("torch."),
                    "memory_format": str(form.memory_format).removeprefix("torch."),
                }
                for form in self.forms
            ],
        }

    @classmethod
    def from_json(
        cls, forward: Callable[..., Any], values: dict[str, Any], options: Options
    ) -> Signature:
        """Rebuild what `to_json` described."""
        result = cls.__new__(cls)
        result._signature = inspect.signature(forward)
        result._factor = options.combined_factor
        result._call_form = (values["num_positional"], frozenset(values["keywords"]))
        result._names = frozenset(values["names"])
        result._with_defaults = _tensor_defaults(result._signature)
        result.node = node_from_json(values["arguments"])
        result.forms = [
            TensorForm(
                form["name"],
                torch.Size(form["shape"]),
                getattr(torch, form["dtype"]),
                getattr(torch, form["memory_format"]),
            )
            for form in values["tensors"]
        ]
        result._check_batch(options)
        result._warned = False
        result.copied = []
        result._only_tensors = result._takes_only_tensors()
        return result

    def _check_batch(self, options: Options) -> None:
        for form in self.forms:
            if form.shape.numel() == 0:
                raise BadArguments(
                    "empty",
                    f"Zero-sized tensors are unsupported: {form.name} has shape "
                    f"{tuple(form.shape)}; leave the argument out or pass None",
                )
            size = form.shape[0] if form.shape else 1
            if size % self._factor:
                raise BatchSizeError(
                    f"Invalid batch dimension: {form.name} has shape {tuple(form.shape)}, but "
                    f"dim 0 must be a multiple of {self._factor} = device_iterations "
                    f"{options.device_iterations} x gradient_accumulation "
                    f"{options.gradient_accumulation} x replicas "
                    f"{options.replication_factor // options.input_group_size}; batch_size of the "
                    "loader is per micro-batch"
                )

    def micro_batch(self, tensors: list[Tensor], index: int) -> list[Tensor]:
        """Return slice number `index` of every tensor, without copying."""
        if self._factor == 1:
            return tensors
        return [t[(n := t.shape[0] // self._factor) * index : n * (index + 1)] for t in tensors]

    def micro_batches(self, tensors: list[Tensor]) -> list[tuple[Tensor, ...] | list[Tensor]]:
        """Return all slices, in the order in which they are consumed."""
        if self._factor == 1 or not tensors:
            return [tensors] * self._factor
        return list(zip(*(t.split(t.shape[0] // self._factor) for t in tensors), strict=True))

    def arguments(self, tensors: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return `tensors` as the positional and keyword arguments of forward."""
        values = rebuild(self.node, tensors)
        bound = inspect.BoundArguments(self._signature, values)
        return bound.args, bound.kwargs

    def accept(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the call's tensors, checked and contiguous.

        Raises:
            ShapeChanged: if anything differs from the compiled call.
        """
        if self._fits(args, kwargs):
            self.copied = []
            return list(args)
        if (len(args), frozenset(kwargs)) != self._call_form:
            self._check_call_form(args, kwargs)
        arguments = bind_arguments(self._signature, args, kwargs)
        tensors, node = flatten(arguments)
        if compare(self.node, node):
            tensors = []
            collect(self.node, arguments, tensors)
        accepted = [self._accept_tensor(f, t) for f, t in zip(self.forms, tensors, strict=True)]
        # Whoever writes to its inputs must also write to these.
        self.copied = [(i, t) for i, t in enumerate(tensors) if t is not accepted[i]]
        return accepted

    def _check_call_form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = _explicit_names(self._signature, args, kwargs)
        if names - self._with_defaults == self._names - self._with_defaults:
            return
        count, keys = self._call_form
        if frozenset(kwargs) != keys:
            missing, extra = sorted(self._names - names), sorted(names - self._names)
            details = [f"Missing arguments: {', '.join(missing)}"] if missing else []
            details += [f"Unexpected arguments: {', '.join(extra)}"] if extra else []
            raise ShapeChanged(f"Keys mismatch: {'; '.join(details)}. {REMEDY}")
        raise ShapeChanged(
            f"Number of positional arguments mismatch: expected {count} arguments but got "
            f"{len(args)}. {REMEDY}"
        )

    def _accept_tensor(self, form: TensorForm, tensor: Tensor) -> Tensor:
        if tensor.dtype != form.dtype:
            raise ShapeChanged(
                f"Type mismatch for {form.name}: expected {form.dtype} but got {tensor.dtype}. "
                f"{REMEDY}"
            )
        if tensor.shape != form.shape:
            raise ShapeChanged(
                f"Shape mismatch for {form.name}: expected {form.shape} but got {tensor.shape}. "
                f"{REMEDY}"
            )
        _refuse_unusable(form.name, tensor)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()  # native code reads memory as it is
        if not tensor.is_contiguous(memory_format=form.memory_format):
            if not self._warned:
                self._warned = True
                warn_user(
                    f"{form.name} is not contiguous and is copied on every call; pass "
                    f"{form.name}.contiguous()"
                )
            tensor = tensor.contiguous(memory_format=form.memory_format)
        return tensor


def _tensor_defaults(signature: inspect.Signature) -> frozenset[str]:
    """Return the parameters whose default holds tensors: inputs of every call, given or not."""
    return frozenset(
        name for name, parameter in signature.parameters.items() if flatten(parameter.default)[0]
    )


def _explicit_names(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> set[str]:
    parameters = list(signature.parameters.values())
    names = set(kwargs)
    for index in range(len(args)):
        parameter = parameters[index] if index < len(parameters) else parameters[-1]
        variadic = parameter.kind is parameter.VAR_POSITIONAL
        names.add(f"*{index}" if variadic or index >= len(parameters) else parameter.name)
    return names


def _form(name: str, tensor: Tensor) -> TensorForm:
    _refuse_unusable(name, tensor)
    memory_format = torch.contiguous_format
    if not tensor.is_contiguous():
        for candidate in (torch.channels_last, torch.channels_last_3d):
            rank = 4 if candidate is torch.channels_last else 5
            if tensor.dim() == rank and tensor.is_contiguous(memory_format=candidate):
                memory_format = candidate
    return TensorForm(name, tensor.shape, tensor.dtype, memory_format)


def _refuse_unusable(name: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise BadArguments(
            "layout",
            f"{name} has layout {tensor.layout}, which has no fixed size; pass a dense tensor (for "
            "a graph: edge_index and edge values)",
        )
    if tensor.is_meta:
        raise BadArguments(
            "meta",
            f"{name} is a meta tensor, which has a shape but no values; pass a tensor on a real "
            "device (its maker may run under `torch.device('meta')`)",
        )

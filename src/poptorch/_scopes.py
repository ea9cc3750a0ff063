"""Context managers that annotate operations for the original's compiler, and its raw operators."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from poptorch import _context
from poptorch._errors import Error
from poptorch._ops import require_tensor
from poptorch._option_store import require
from poptorch.enums import MultiConvPlanType
from torchkiln import ops

_CONVOLUTIONS = frozenset(
    {
        functional.conv1d,
        functional.conv2d,
        functional.conv3d,
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    }
)
_name_scopes: list[str] = []


class NameScope:
    """Names the operations of its body; kept on a stack while the body runs."""

    def __init__(self, name: str) -> None:
        require(isinstance(name, str), "Unexpected type for name", name, str)
        self.name = name

    def __enter__(self) -> Self:
        _name_scopes.append(self.name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _name_scopes.pop()


class Attribute:
    """Gives the operations of its body attributes: `Attribute(__outline={"layer": "a"})`."""

    def __init__(self, **attributes: dict[str, Any]) -> None:
        for name, entries in attributes.items():
            require(isinstance(entries, dict), f"Unexpected value of {name}", entries, dict)
        self.attributes = attributes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class MultiConv:
    """Groups convolutions for the original's planner; settings are checked and kept."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self._counter: _ConvolutionCounter | None = None

    def availableMemoryProportions(self, value: float | list[float]) -> Self:
        """Record memory proportions, one for all or one each."""
        return self._keep("available_memory_proportions", value, float, "Invalid proportions")

    def partialsTypes(self, value: torch.dtype | list[torch.dtype]) -> Self:
        """Record dtypes of partial sums: `torch.float` or `torch.half`."""
        for dtype in _as_list(value):
            if dtype not in (torch.float, torch.half):
                raise ValueError(
                    f"Invalid partials types: expected torch.float or torch.half, got {value!r}"
                )
        self.settings["partials_types"] = value
        return self

    def enableConvDithering(self, value: bool | list[bool]) -> Self:
        """Record dithering, one for all or one each."""
        return self._keep("enable_conv_dithering", value, bool, "Invalid conv dithering")

    def planType(self, value: MultiConvPlanType) -> Self:
        """Record the plan."""
        require(isinstance(value, MultiConvPlanType), "Invalid plan type", value, MultiConvPlanType)
        self.settings["plan_type"] = value
        return self

    def perConvReservedTiles(self, value: int) -> Self:
        """Record a number of tiles."""
        require(isinstance(value, int), "Invalid reserved tiles", value, int)
        self.settings["per_conv_reserved_tiles"] = value
        return self

    def cycleBackOff(self, value: float) -> Self:
        """Record a back-off factor."""
        require(isinstance(value, float), "Invalid cycle back off", value, float)
        self.settings["cycle_back_off"] = value
        return self

    def __enter__(self) -> Self:
        run = _context.current()
        if run is not None:
            if run.inside_multi_conv:
                raise Error("A poptorch.MultiConv cannot be inside another one")
            run.inside_multi_conv = True
            self._counter = _ConvolutionCounter()
            self._counter.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        counter, self._counter = self._counter, None
        if counter is None:
            return
        counter.__exit__(kind, error, trace)
        run = _context.current()
        if run is not None:
            run.inside_multi_conv = False
        if kind is None and counter.count == 0:
            raise Error("A poptorch.MultiConv must contain at least one convolution")

    def _keep(self, name: str, value: Any, kind: type, message: str) -> Self:
        for entry in _as_list(value):
            require(isinstance(entry, kind), message, value, kind)
        self.settings[name] = value
        return self


class _ConvolutionCounter(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _CONVOLUTIONS:
            self.count += 1
        return func(*args, **(kwargs or {}))


def custom_op(
    inputs: list[Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: list[Tensor],
    attributes: dict[str, Any] | None = None,
) -> list[Tensor]:
    """Return the results of what `torchkiln.register_custom_op` registered for the operator.

    Raises:
        ValueError: if the attributes would not be valid in the original.
        NotImplementedError: if nothing is registered; it says how.
        Error: if the results do not have the forms of `example_outputs`.
    """
    for tensor in inputs:
        require_tensor("custom_op", tensor)
    for key, value in (attributes or {}).items():
        if not isinstance(key, str) or not key.isascii():
            raise ValueError(f"attribute names must be ASCII strings, got {key!r}")
        kinds = {type(entry) for entry in _as_list(value)}
        if len(kinds) != 1 or not kinds <= {float, int, str}:
            raise ValueError(
                f"attribute {key!r} must be a float, int or str, or a list of one of them; "
                f"got {value!r}"
            )
    try:
        return ops.call_custom_op(name, domain, inputs, example_outputs, attributes or {})
    except ValueError as error:
        raise Error(str(error)) from error


def getIpuTensorId(tensor: Tensor) -> int:
    """Refuse: tensors have no device-side number here."""
    raise NotImplementedError(
        "poptorch.getIpuTensorId: tensors have no number in the original's compiler here; name "
        "them with Options.anchorTensor"
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _push_name_scope(name: str) -> None:
    _name_scopes.append(name)


def _pop_name_scope() -> None:
    if not _name_scopes:
        raise Error("pop_name_scope without a push_name_scope before it")
    _name_scopes.pop()


def _internal_cast(tensor: Tensor, dtype: str) -> Tensor:
    dtypes = {"FLOAT": torch.float32, "FLOAT16": torch.float16}
    if dtype not in dtypes:
        raise Error(f"internal_cast takes FLOAT or FLOAT16, got {dtype!r}")
    return tensor.to(dtypes[dtype])


# Programs call these three directly as torch.ops.poptorch.<name>. They are composite: a capture
# sees through them, so no scope name ends up in a graph.
_library = torch.library.Library("poptorch", "FRAGMENT")
for _schema, _function in {
    "push_name_scope(str name) -> ()": _push_name_scope,
    "pop_name_scope() -> ()": _pop_name_scope,
    "internal_cast(Tensor self, str dtype) -> Tensor": _internal_cast,
}.items():
    _library.define(_schema)
    _library.impl(_schema.partition("(")[0], _function, "CompositeImplicitAutograd")

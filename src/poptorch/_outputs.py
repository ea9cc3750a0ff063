"""What a training model returns: plain tensors whose `backward` says that it was done."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NoReturn, Self

from poptorch._errors import Error
from torchkiln.data import flatten


class _BackwardIsDone:
    """Stands in for `backward` on returned tensors.

    An instance attribute travels with a tensor into files. This one turns into an empty
    OrderedDict there, which torch.load accepts everywhere, with poptorch or without.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise Error(
            "backward() cannot be called explicitly on outputs of a PopTorch model: calling the "
            "model has already run the backward pass and the weight update. Remove the call"
        )

    def __reduce__(self) -> Any:
        return (OrderedDict, ())

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


_backward_is_done = _BackwardIsDone()


def refuse_backward(outputs: Any) -> Any:
    """Make `backward()` of every tensor in `outputs` explain itself; return `outputs`."""
    for tensor in flatten(outputs)[0]:
        tensor.backward = _backward_is_done  # type: ignore[method-assign]
    return outputs

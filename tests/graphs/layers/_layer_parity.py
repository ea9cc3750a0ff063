"""Compare a layer inside a program, on a padded batch, with eager PyG on the plain batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from _layer_samples import MAX_NODES, Sample, padded_sample, plain_sample
from _recipes import Recipe
from torch import Tensor, nn

from torchkiln.core import Options, TorchkilnError
from torchkiln.runtime import inference_model

# float32 sums in another order; layers with divisions by small numbers lose a digit more.
TOLERANCE = 1e-5


class Case(nn.Module):
    """A layer with its call, returning the real rows of its result and all gradients."""

    def __init__(self, layer: Any, call: Callable[..., Any], level: str, sample: Sample) -> None:
        super().__init__()
        self.layer = layer
        self.call = call
        self.level = level
        self.form = replace(sample, tensors={})

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        # A leaf of this forward, so that it has a gradient in eager and in programs alike.
        x = tensors["x"].detach().requires_grad_()
        sample = replace(self.form, tensors={**tensors, "x": x})
        out = self.call(self.layer, sample)
        tensors_out = list(out) if isinstance(out, tuple | list) else [out]
        rows = [self._real(tensor) for tensor in tensors_out if isinstance(tensor, Tensor)]
        loss = sum((row * _weights(row)).sum() for row in rows if row.is_floating_point())
        wanted = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            return {"out": rows, "grads": []}
        grads = torch.autograd.grad(loss, [x, *wanted.values()], allow_unused=True)
        given = [torch.zeros(()) if grad is None else grad for grad in grads]
        given[0] = given[0][: self.form.nodes] if given[0].dim() else given[0]
        return {"out": rows, "grads": given}

    def _real(self, tensor: Tensor) -> Tensor:
        counts = {
            "node": self.form.nodes,
            "edge": self.form.edges,
            "graph": self.form.graphs,
            "cluster": self.form.graphs * MAX_NODES,
        }
        return tensor[: counts[self.level]] if self.level in counts else tensor


def _weights(tensor: Tensor) -> Tensor:
    """Return fixed weights of both signs, so that no error can hide in a sum."""
    steps = torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return torch.sin(steps + 1).view(tensor.shape)


@dataclass(frozen=True)
class Parity:
    """Largest errors, relative to the size of the compared tensor; or why there are none."""

    output: float = float("nan")
    gradient: float = float("nan")
    buffers: float = 0.0
    refused: str = ""

    @property
    def exact(self) -> bool:
        return not self.refused and max(self.output, self.gradient, self.buffers) <= TOLERANCE


def compare(
    recipe: Recipe,
    *,
    flagged: bool = False,
    prepare: Callable[[nn.Module], nn.Module] | None = None,
    options: Options | None = None,
    seed: int = 0,
) -> Parity:
    """Run one recipe both ways; `prepare` is applied to the program's module only."""
    options = options or Options(backend="capture", show_progress=False)
    build = recipe.flag_build if flagged and recipe.flag_build is not None else recipe.build
    call = recipe.flag_call if flagged and recipe.flag_call is not None else recipe.call
    assert build is not None
    assert call is not None
    torch.manual_seed(seed)
    layer = build()
    plain = plain_sample(seed)
    padded = padded_sample(plain)
    if any(nn.parameter.is_lazy(parameter) for parameter in layer.parameters()):
        with torch.no_grad():
            call(layer, plain)
    reference = Case(copy.deepcopy(layer), call, recipe.level, plain)
    module: nn.Module = Case(layer, call, recipe.level, padded)
    expected = reference(plain.tensors)
    if prepare is not None:
        module = prepare(module)
    try:
        got = inference_model(module, options)(padded.tensors)
    except TorchkilnError as error:
        return Parity(refused=str(error))
    return Parity(
        _largest_error(expected["out"], got["out"]),
        _largest_error(expected["grads"], got["grads"]),
        _largest_error(list(reference.buffers()), list(module.buffers())),
    )


def _largest_error(expected: list[Tensor], got: list[Tensor]) -> float:
    errors = [0.0]
    for first, second in zip(expected, got, strict=True):
        if first.shape != second.shape:
            return float("inf")
        if not first.numel():
            continue
        difference = (first.detach().double() - second.detach().double()).abs().max()
        scale = first.detach().double().abs().max().clamp(min=1.0)
        # NaN compares as smaller than everything: say infinity.
        errors.append(float("inf") if difference.isnan() else float(difference / scale))
    return max(errors)

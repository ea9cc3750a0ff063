"""PyG's norms with sizes of the batch at hand, and statistics over real rows only."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from torchkiln.graphs.layers._batch_form import current_form

# Norms whose statistics are per graph, and the name of their size argument.
SIZED_NORMS = {
    "LayerNorm": "batch_size",
    "GraphNorm": "batch_size",
    "GraphSizeNorm": "batch_size",
    "PairNorm": "batch_size",
    "MeanSubtractionNorm": "dim_size",
}


def sized_norm(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the norm with the number of graphs; without `batch`, filler is a graph of its own.

    PyG's norms take the whole input as one graph if no `batch` is given: statistics of real nodes
    must then not see filler, so the mask becomes the batch vector.
    """
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    size = SIZED_NORMS.get(type(self).__name__, "batch_size")
    if type(self).__name__ == "LayerNorm" and self.mode == "graph" and given["batch"] is None:
        mask = current_form().mask_of(len(given["x"]), "LayerNorm")
        if mask is not None:
            return _whole_layer_norm(self, given["x"], mask)
    if getattr(self, "mode", "graph") == "graph":
        given["batch"], given[size] = _graphs_of(self, given["x"], given["batch"], given[size])
    return original(*bound.args, **bound.kwargs)


def _whole_layer_norm(norm: Any, x: Tensor, mask: Tensor) -> Tensor:
    """`LayerNorm` without `batch`: there PyG adds eps to the deviation, not to the variance."""
    real = mask[:, None]
    count = (mask.sum() * x.shape[1]).clamp(min=1)
    mean = torch.where(real, x, 0.0).sum() / count
    centred = torch.where(real, x - mean, 0.0)
    var = centred.square().sum() / count
    # The root has no derivative at zero.
    deviation = torch.where(var > 0, torch.where(var > 0, var, 1.0).sqrt(), 0.0)
    out: Tensor = centred / (deviation + norm.eps)
    return out if norm.weight is None else out * norm.weight + norm.bias


def _graphs_of(
    norm: Any, x: Tensor, batch: Tensor | None, size: int | None
) -> tuple[Tensor | None, int | None]:
    form = current_form()
    if batch is not None:
        return batch, form.num_graphs if size is None else size
    mask = form.mask_of(len(x), type(norm).__name__)
    if mask is None:
        return None, size
    return (~mask).long(), 2


def instance_norm(
    original: Any,
    self: Any,
    x: Tensor,
    batch: Tensor | None = None,
    batch_size: int | None = None,
) -> Any:
    """`InstanceNorm.forward`: running statistics change in place and skip filler graphs."""
    whole = batch is None
    batch, batch_size = _graphs_of(self, x, batch, batch_size)
    if batch is None or batch_size is None:
        return original(self, x, batch, batch_size)
    if self.training or not self.track_running_stats:
        count = x.new_zeros(batch_size).index_add(0, batch, torch.ones_like(x[:, 0]))
        count = count.clamp(min=1.0)[:, None]
        mean = x.new_zeros(batch_size, x.shape[1]).index_add(0, batch, x) / count
        x = x - mean[batch]
        squares = torch.zeros_like(mean).index_add(0, batch, x.square())
        var = squares / count
        if self.running_mean is not None:
            unbiased = squares / (count - 1).clamp(min=1.0)
            weight = _graph_weights(batch_size, whole, mean)
            _move(self.running_mean, _mean_over_graphs(mean, weight), self.momentum)
            _move(self.running_var, _mean_over_graphs(unbiased, weight), self.momentum)
    else:
        mean = self.running_mean.expand(batch_size, -1)
        var = self.running_var.expand(batch_size, -1)
        x = x - mean[batch]
    out = x / (var + self.eps).sqrt()[batch]
    return out if self.weight is None else out * self.weight + self.bias


def _graph_weights(batch_size: int, whole: bool, like: Tensor) -> Tensor:
    """Return how much each graph counts in running statistics; they sum to one."""
    if whole:  # graph 0 is everything real, graph 1 is filler
        return like.new_tensor([1.0] + [0.0] * (batch_size - 1))
    mask = current_form().masks.get("graph")
    if mask is None or len(mask) != batch_size:
        return like.new_full((batch_size,), 1.0 / batch_size)
    real = mask.to(like.dtype)
    return real / real.sum().clamp(min=1.0)


def _mean_over_graphs(values: Tensor, weight: Tensor) -> Tensor:
    # Statistics of filler may have overflowed, and zero times infinity is not zero.
    kept = torch.where(weight[:, None] > 0, values, 0.0)
    return (kept * weight[:, None]).sum(dim=0)


def _move(running: Tensor, value: Tensor, factor: Any) -> None:
    with torch.no_grad():
        running.copy_((1 - factor) * running + factor * value.detach())


def hetero_batch_norm(original: Any, self: Any, x: Tensor, type_vec: Tensor) -> Any:
    """`HeteroBatchNorm.forward`: types that are absent keep their statistics, by mask."""
    mask = current_form().mask_of(len(x), "HeteroBatchNorm")
    if not self.training and self.track_running_stats:
        mean, var = self.running_mean, self.running_var
    else:
        with torch.no_grad():
            mean, var, count = _type_statistics(x, type_vec, self.num_types, mask)
            if self.training and self.track_running_stats:
                factor: Any = self.momentum
                if factor is None:
                    self.num_batches_tracked.add_(1)
                    factor = 1.0 / self.num_batches_tracked
                factor = torch.where(count[:, None] > 0, factor, 0.0)
                _move(self.running_mean, mean, factor)
                _move(self.running_var, var, factor)
    out = (x - mean[type_vec]) / var.clamp(min=self.eps).sqrt()[type_vec]
    return out * self.weight[type_vec] + self.bias[type_vec] if self.affine else out


def _type_statistics(
    x: Tensor, type_vec: Tensor, num_types: int, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if mask is not None:
        # Filler counts for a type that is cut off.
        type_vec = torch.where(mask, type_vec, num_types)
    count = x.new_zeros(num_types + 1).index_add(0, type_vec, torch.ones_like(x[:, 0]))
    divisor = count.clamp(min=1.0)[:, None]
    mean = x.new_zeros(num_types + 1, x.shape[1]).index_add(0, type_vec, x) / divisor
    var = torch.zeros_like(mean).index_add(0, type_vec, (x - mean[type_vec]).square()) / divisor
    return mean[:num_types], var[:num_types], count[:num_types]

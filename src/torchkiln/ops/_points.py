"""Point clouds: farthest point sampling and nearest neighbours, with static result sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_HALVES = (torch.float16, torch.bfloat16)


def farthest_points(
    points: Tensor, ptr: Sequence[int], ratio: float = 0.5, random_start: bool = False
) -> Tensor:
    """Return indices of points that are far from each other, example by example.

    Args:
        points: Coordinates, [num_points, num_dims].
        ptr: Bounds of the examples: example i holds the points `ptr[i]` to `ptr[i + 1] - 1`.
        ratio: Share of points to choose; `ceil(ratio * n)` of each example.
        random_start: Begin with a random point of each example instead of its first.

    Returns:
        Indices into `points`, int64, in the order in which they were chosen.

    Raises:
        ValueError: if the bounds do not describe the points, or the ratio is not in (0, 1].
    """
    bounds = list(ptr)
    if len(bounds) < 2 or bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > len(points):
        raise ValueError(
            f"ptr must hold at least two ascending bounds within 0..{len(points)}, got {bounds}"
        )
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio must be above 0 and at most 1, got {ratio}")
    sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
    counts = [math.ceil(ratio * size) for size in sizes]
    starts = torch.zeros(len(sizes), dtype=torch.long, device=points.device)
    if random_start:
        scale = torch.tensor(sizes, device=points.device)
        starts = (torch.rand(len(sizes), device=points.device) * scale).long()
    return _farthest_points(points, bounds, counts, starts)


@torch.library.custom_op("torchkiln::farthest_points", mutates_args=())
def _farthest_points(
    points: Tensor, bounds: Sequence[int], counts: Sequence[int], starts: Tensor
) -> Tensor:
    chosen = [torch.empty(0, dtype=torch.long, device=points.device)]
    for index, count in enumerate(counts):
        if count:
            segment = points[bounds[index] : bounds[index + 1]]
            chosen.append(bounds[index] + _farthest_in(segment, count, starts[index]))
    return torch.cat(chosen)


def _farthest_in(points: Tensor, count: int, start: Tensor) -> Tensor:
    chosen = [start]
    distance = torch.full((len(points),), float("inf"), device=points.device, dtype=points.dtype)
    for _ in range(count - 1):
        step = (points - points[chosen[-1]]).square().sum(dim=-1)
        distance = torch.minimum(distance, step)
        chosen.append(distance.argmax())
    return torch.stack(chosen)


@_farthest_points.register_fake
def _(points: Tensor, bounds: Sequence[int], counts: Sequence[int], starts: Tensor) -> Tensor:
    return points.new_empty(sum(counts), dtype=torch.long)


def nearest(
    x: Tensor,
    y: Tensor,
    batch_x: Tensor | Sequence[int] | None = None,
    batch_y: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """Return, for each row of `x`, the index of the closest row of `y` of the same example.

    The table of all distances is materialised: [len(x), len(y)].

    Args:
        x: Points, [num_x, num_dims]; one-dimensional tensors are columns of numbers.
        y: Points, [num_y, num_dims].
        batch_x: Example of each row of `x`, ascending; None means one example.
        batch_y: Example of each row of `y`, ascending.

    Raises:
        ValueError: if shapes do not fit, or a list is not ascending or misses an example.
    """
    x = x.reshape(-1, 1) if x.dim() == 1 else x
    y = y.reshape(-1, 1) if y.dim() == 1 else y
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(
            f"x and y must be [n, d] with the same d, got {list(x.shape)} and {list(y.shape)}"
        )
    _check_batch_lists(batch_x, batch_y)
    examples_x = _batch_vector("batch_x", batch_x, x)
    examples_y = _batch_vector("batch_y", batch_y, y)
    if x.dtype in _HALVES or y.dtype in _HALVES:
        # torch has no distances in half precision, and rounded ones could not be told apart.
        x, y = x.float(), y.float()
    # Exact differences instead of a product form: the smallest distances matter here.
    distance = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    foreign = examples_x[:, None] != examples_y[None, :]
    return distance.masked_fill(foreign, float("inf")).argmin(dim=1)


def _check_batch_lists(
    batch_x: Tensor | Sequence[int] | None, batch_y: Tensor | Sequence[int] | None
) -> None:
    """Check what can be known without reading tensors."""
    lists = {"batch_x": batch_x, "batch_y": batch_y}
    for name, batch in lists.items():
        if isinstance(batch, list | tuple) and list(batch) != sorted(batch):
            raise ValueError(f"{name} must be sorted, got {list(batch)}")
    if isinstance(batch_x, list | tuple) and isinstance(batch_y, list | tuple):
        missing = sorted(set(batch_x) - set(batch_y))
        if missing:
            raise ValueError(f"examples {missing} of batch_x have no point in batch_y")


def _batch_vector(name: str, batch: Tensor | Sequence[int] | None, points: Tensor) -> Tensor:
    if batch is None:
        return torch.zeros(len(points), dtype=torch.long, device=points.device)
    vector = torch.as_tensor(batch, device=points.device)
    if vector.shape != (len(points),):
        raise ValueError(f"{name} must hold {len(points)} entries, got {list(vector.shape)}")
    return vector

"""Batch normalisation over real rows only, and the warning for one that counts filler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.core import warn_user
from torchkiln.graphs._padding_seen import padding_seen
from torchkiln.graphs.layers._batch_form import BatchForm, current_form
from torchkiln.torch_internals._modules import check_batch_norm_input


class MaskedBatchNorm1d(nn.BatchNorm1d):
    """`BatchNorm1d` whose statistics are those of the unpadded batch.

    Rows are real where the batch's mask of that length says so; without masks it is the ordinary
    layer. Filler rows come out as the bias, so that huge filler goes no further. A batch of filler
    only leaves the running statistics as they are.
    """

    def forward(self, input: Tensor) -> Tensor:  # torch's name of the argument
        check_batch_norm_input(self, input)
        if not self.training and self.running_mean is not None:
            return super().forward(input)
        mask = current_form().mask_of(len(input), "BatchNorm")
        if mask is None:
            return super().forward(input)
        return self._masked(input, mask)

    def _masked(self, x: Tensor, mask: Tensor) -> Tensor:
        channels = (1, -1, *[1] * (x.dim() - 2))
        rows = (-1, *[1] * (x.dim() - 1))
        axes = [axis for axis in range(x.dim()) if axis != 1]
        real = mask.view(rows)
        per_row = x.numel() // max(1, x.shape[0] * x.shape[1])
        count = (mask.sum() * per_row).to(x.dtype)
        kept = torch.where(real, x, 0.0)
        mean = kept.sum(dim=axes) / count.clamp(min=1.0)
        centred = torch.where(real, x - mean.view(channels), 0.0)
        squares = centred.square().sum(dim=axes)
        var = squares / count.clamp(min=1.0)
        self._track(mean, squares / (count - 1).clamp(min=1.0), count)
        out = centred * (var + self.eps).rsqrt().view(channels)
        if not self.affine:
            return out
        return out * self.weight.view(channels) + self.bias.view(channels)

    @torch.no_grad()
    def _track(self, mean: Tensor, unbiased: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or not self.training:
            return
        assert self.num_batches_tracked is not None
        counts = count > 0
        self.num_batches_tracked.add_(counts.to(self.num_batches_tracked.dtype))
        factor: Any = self.momentum
        if factor is None:
            factor = 1.0 / self.num_batches_tracked.clamp(min=1)
        factor = torch.where(counts, factor, 0.0)
        self.running_mean.copy_((1 - factor) * self.running_mean + factor * mean.detach())
        self.running_var.copy_((1 - factor) * self.running_var + factor * unbiased.detach())


class FillerWatch:
    """Warns once a capture about a BatchNorm that takes its statistics over filler, too."""

    def __init__(self, module: nn.Module) -> None:
        # That some batch of this process had filler says nothing about a model without graphs.
        kinds = {type(child).__module__ for child in module.modules()}
        self._of_graphs = any(kind.startswith("torch_geometric.") for kind in kinds)
        self._found = BatchForm()
        self._warned = False

    def look(self, form: BatchForm) -> None:
        """Note the masks that the program's arguments hold."""
        self._found = form

    def forward(self, original: Any, norm: Any, input: Tensor) -> Any:
        """Run `norm`, after a word about it where one is due."""
        if not self._warned and self._counts_filler(norm, input):
            self._warned = True
            remedy = "make_static(model) lets them count real rows only"
            if isinstance(norm, MaskedBatchNorm1d):
                remedy = "no mask was found: pass node_mask to forward, or set it with batch_form"
            warn_user(
                f"BatchNorm1d({norm.num_features}) takes its statistics over all {len(input)} rows "
                f"of a padded batch, filler included; {remedy} (torchkiln.graphs.make_static)"
            )
        return original(norm, input)

    def _counts_filler(self, norm: Any, input: Tensor) -> bool:
        if not isinstance(norm, nn.BatchNorm1d):
            return False
        takes_statistics = norm.training or norm.running_mean is None
        masked = isinstance(norm, MaskedBatchNorm1d) and bool(current_form().masks)
        seen = (self._of_graphs and padding_seen()) or bool(self._found.masks)
        return takes_statistics and not masked and seen

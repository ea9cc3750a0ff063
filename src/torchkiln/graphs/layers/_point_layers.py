"""PyG's layers that search for neighbours themselves, on tables of fixed width.

Missing neighbours (-1) go to a ghost node, so small examples get exactly the neighbours they have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchkiln.graphs.layers._batch_form import BatchForm, current_form, pop_form, push_form
from torchkiln.graphs.layers._ghost import add_ghost, banish, ghost_form, needs_ghost
from torchkiln.graphs.layers._points import MISSING, drop_missing, knn


def edge_conv(original: Any, self: Any, x: Any, edge_index: Any) -> Any:
    """`EdgeConv.forward` for edges that may hold -1."""
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        return original(self, x, edge_index)
    pair = (x, x) if isinstance(x, Tensor) else x
    return _propagate_found(self, edge_index, pair)


def dynamic_edge_conv(self: Any, x: Any, batch: Any = None) -> Any:
    """`DynamicEdgeConv.forward`."""
    pair = (x, x) if isinstance(x, Tensor) else x
    examples = batch if isinstance(batch, tuple) else (batch, batch)
    edge_index = knn(pair[0], pair[1], self.k, examples[0], examples[1]).flip(0)
    if not needs_ghost(self):  # norms inside see the neighbours that there are, as in PyG
        return self.propagate(drop_missing(edge_index), x=pair, size=None)
    return _propagate_found(self, edge_index, pair)


def _propagate_found(layer: Any, edge_index: Tensor, pair: tuple[Tensor, Tensor]) -> Any:
    source = 0 if layer.flow == "source_to_target" else 1
    sizes = (len(pair[source]), len(pair[1 - source]))
    missing = edge_index[0] == MISSING
    push_form(ghost_form(layer, edge_index, missing, sizes, loops=0))
    try:
        return layer.propagate(banish(edge_index, missing, sizes), x=add_ghost(pair), size=None)[
            :-1
        ]
    finally:
        pop_form()


def cf_conv(original: Any, self: Any, x: Tensor, edge_index: Tensor, *args: Any) -> Any:
    """`CFConv.forward`, the convolution of SchNet, for edges of `radius_graph` that hold -1."""
    routed = banish(edge_index, edge_index[0] == MISSING, (len(x), len(x)))
    return original(self, add_ghost(x), routed, *args)[:-1]


def gravnet_conv(self: Any, x: Any, batch: Any = None) -> Any:
    """`GravNetConv.forward`."""
    pair = (x, x) if isinstance(x, Tensor) else x
    examples = batch if isinstance(batch, tuple) else (batch, batch)
    features = self.lin_h(pair[0])
    space = self.lin_s(pair[0])
    own_space = space if isinstance(x, Tensor) else self.lin_s(pair[1])
    found = knn(space, own_space, self.k, examples[0], examples[1]).flip(0)
    sizes = (len(space), len(own_space))
    edge_index = banish(found, found[0] == MISSING, sizes)
    offset = add_ghost(space)[edge_index[0]] - add_ghost(own_space)[edge_index[1]]
    weight = torch.exp(-10.0 * offset.square().sum(dim=-1))
    gathered = self.propagate(
        edge_index,
        x=(add_ghost(features), None),
        edge_weight=weight,
        size=(sizes[0] + 1, sizes[1] + 1),
    )[:-1]
    return self.lin_out1(pair[1]) + self.lin_out2(gathered)


def x_conv(self: Any, x: Tensor | None, pos: Tensor, batch: Tensor | None = None) -> Any:
    """`XConv.forward`; a point whose example is smaller than the kernel counts itself again.

    (PyG cannot run such an example at all; in a fixed-size batch it is usually filler.)
    """
    pos = pos.unsqueeze(-1) if pos.dim() == 1 else pos
    count, kernel = len(pos), self.kernel_size
    width = min(kernel * self.dilation, count)
    index = knn(pos, pos, width, batch, batch)[1].view(count, width)[:, :: self.dilation]
    itself = torch.arange(count, device=pos.device)[:, None].expand_as(index)
    neighbours = torch.where(index == MISSING, itself, index)
    offsets = pos[neighbours] - pos[:, None]
    with_pairs = _form_with_repeats(count, kernel)
    push_form(with_pairs)
    try:
        lifted = self.mlp1(offsets.reshape(count * kernel, -1))
    finally:
        pop_form()
    if x is not None:
        x = x.unsqueeze(-1) if x.dim() == 1 else x
        lifted = torch.cat([lifted, x[neighbours]], dim=-1)
    transform = self.mlp2(offsets.reshape(count, -1))
    mixed = torch.matmul(lifted.transpose(1, 2).contiguous(), transform)
    return self.conv(mixed)


def _form_with_repeats(count: int, times: int) -> BatchForm:
    """Return the form for a tensor with `times` rows per node: norms inside see those."""
    form = current_form()
    mask = form.mask_of(count, "XConv")
    if mask is None:
        return form
    repeated = mask[:, None].expand(count, times).reshape(-1)
    return BatchForm({"neighbour": repeated}, form.num_graphs, form.max_num_nodes)

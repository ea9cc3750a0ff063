"""Forwards of PyG's convolutions with masks where PyG selects edges or nodes by value."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from torchkiln.graphs.layers._batch_form import current_form
from torchkiln.graphs.layers._ghost import add_ghost, banish
from torchkiln.graphs.layers._self_loops import remaining_self_loops
from torchkiln.graphs.layers._sizes import dense_positions


def _is_sparse(edge_index: Any) -> bool:
    return not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided


def _count(index: Tensor, size: int, weight: Tensor) -> Tensor:
    return weight.new_zeros(size).index_add(0, index, weight)


def cluster_gcn_conv(original: Any, self: Any, x: Tensor, edge_index: Any) -> Any:
    """`ClusterGCNConv.forward`, with and without self-loops of its own."""
    if _is_sparse(edge_index):
        return original(self, x, edge_index)
    nodes = x.shape[self.node_dim]
    weight = x.new_ones(edge_index.shape[1])
    if self.add_self_loops:
        # PyG replaces all loops by single ones, so the weight of a loop is 1 in any case.
        edge_index, weight = remaining_self_loops(edge_index, weight, 1.0, nodes)
    row, column = edge_index[0], edge_index[1]
    inverse = 1.0 / _count(column, nodes, weight).clamp(min=1.0)
    diagonal = torch.where(row == column, 1.0 + self.diag_lambda, 1.0)
    norm = inverse[column] * diagonal * weight
    out = self.propagate(edge_index, x=x, edge_weight=norm)
    return self.lin_out(out) + self.lin_root(x)


def mf_conv(original: Any, self: Any, x: Any, edge_index: Any, size: Any = None) -> Any:
    """`MFConv.forward`: every degree's weights on every node, the right one chosen by mask."""
    if _is_sparse(edge_index):
        return original(self, x, edge_index, size)
    source, target = (x, x) if isinstance(x, Tensor) else x
    end = edge_index[1 if self.flow == "source_to_target" else 0]
    nodes = len(target) if target is not None else (size[1] if size is not None else len(source))
    degree = _count(end, nodes, torch.ones_like(end)).clamp(max=self.max_degree)
    gathered = self.propagate(edge_index, x=(source, target), size=size)
    out = gathered.new_zeros(*gathered.shape[:-1], self.out_channels)
    for number, (lin_l, lin_r) in enumerate(zip(self.lins_l, self.lins_r, strict=True)):
        own = lin_l(gathered)
        if target is not None:
            own = own + lin_r(target)
        chosen = (degree == number).view(-1, 1)
        out = torch.where(chosen, own, out)
    return out


def cheb_norm(
    original: Any,
    self: Any,
    edge_index: Tensor,
    num_nodes: int,
    edge_weight: Tensor | None,
    normalization: str | None,
    lambda_max: Any = None,
    dtype: torch.dtype | None = None,
    batch: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`ChebConv.__norm__`: the scaled Laplacian with existing loops at weight zero."""
    if edge_weight is None:
        edge_weight = torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
    row, column = edge_index[0], edge_index[1]
    weight = torch.where(row == column, 0.0, edge_weight)
    degree = _count(row, num_nodes, weight)
    if normalization == "sym":
        root = torch.where(degree > 0, degree, 1.0).rsqrt() * (degree > 0)
        weight, diagonal = root[row] * weight * root[column], torch.ones_like(degree)
    elif normalization == "rw":
        inverse = (degree > 0) / torch.where(degree > 0, degree, 1.0)
        weight, diagonal = inverse[row] * weight, torch.ones_like(degree)
    else:
        diagonal = degree
    nodes = torch.arange(num_nodes, device=edge_index.device)
    edges = torch.cat([edge_index, nodes.expand(2, -1)], dim=1)
    laplacian = torch.cat([-weight, diagonal])
    if lambda_max is None:
        lambda_max = 2.0 * laplacian.max()
    elif not isinstance(lambda_max, Tensor):
        lambda_max = laplacian.new_tensor(lambda_max)
    if batch is not None and lambda_max.numel() > 1:
        lambda_max = lambda_max[batch[edges[0]]]
    scaled = 2.0 * laplacian / lambda_max
    scaled = scaled.masked_fill(scaled == float("inf"), 0.0)
    # Only the appended loops count: those of the data are switched off.
    is_diagonal = torch.arange(len(scaled), device=scaled.device) >= len(weight)
    scaled = scaled - is_diagonal.to(scaled.dtype)
    return edges, scaled


def rgcn_conv(original: Any, self: Any, x: Any, edge_index: Any, edge_type: Any = None) -> Any:
    """`RGCNConv.forward`: the edges of other relations go to a ghost node."""
    if _is_sparse(edge_index) or edge_type is None:
        return original(self, x, edge_index, edge_type)
    left, right = x if isinstance(x, tuple) else (x, x)
    if left is None:
        left = torch.arange(self.in_channels_l, device=self.weight.device)
    right = left if right is None else right
    weight = self.weight
    if self.num_bases is not None:
        weight = (self.comp @ weight.view(self.num_bases, -1)).view(
            self.num_relations, self.in_channels_l, self.out_channels
        )
    sizes = (len(left), len(right))
    with_ghost = (sizes[0] + 1, sizes[1] + 1)
    out = torch.zeros(len(right), self.out_channels, device=right.device)
    embeds = not right.is_floating_point()
    for relation in range(self.num_relations):
        edges = banish(edge_index, edge_type != relation, sizes)
        features = add_ghost(weight[relation, left] if embeds else left)
        gathered = self.propagate(edges, x=features, edge_type_ptr=None, size=with_ghost)[:-1]
        if self.num_blocks is not None:
            blocks = gathered.view(-1, weight.shape[1], weight.shape[2])
            mixed = torch.einsum("abc,bcd->abd", blocks, weight[relation])
            gathered = mixed.reshape(-1, self.out_channels)
        elif not embeds:
            gathered = gathered @ weight[relation]
        out = out + gathered
    if self.root is not None:
        out = out + (self.root[right] if embeds else right @ self.root)
    return out if self.bias is None else out + self.bias


def film_conv(original: Any, self: Any, x: Any, edge_index: Any, edge_type: Any = None) -> Any:
    """`FiLMConv.forward` for several relations: as `rgcn_conv`."""
    if _is_sparse(edge_index) or self.num_relations <= 1:
        return original(self, x, edge_index, edge_type)
    source, target = (x, x) if isinstance(x, Tensor) else x
    beta, gamma = self.film_skip(target).split(self.out_channels, dim=-1)
    out = gamma * self.lin_skip(target) + beta
    out = out if self.act is None else self.act(out)
    sizes = (len(source), len(target))
    for relation, (lin, film) in enumerate(zip(self.lins, self.films, strict=True)):
        edges = banish(edge_index, edge_type != relation, sizes)
        beta, gamma = film(add_ghost(target)).split(self.out_channels, dim=-1)
        features = lin(add_ghost(source))
        out = out + self.propagate(edges, x=features, beta=beta, gamma=gamma)[:-1]
    return out


def rgat_message(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """`RGATConv.message`: softmax within a relation is softmax over (node, relation) pairs."""
    within = self.attention_mechanism == "within-relation" and self.mod is None
    if within and kwargs.get("size_i") is not None:
        count = self.num_relations
        kwargs["index"] = kwargs["index"] * count + kwargs["edge_type"]
        kwargs.update(ptr=None, size_i=kwargs["size_i"] * count)
        self.attention_mechanism = "across-relation"
        try:
            return original(self, *args, **kwargs)
        finally:
            self.attention_mechanism = "within-relation"
    return original(self, *args, **kwargs)


def han_group(original: Any, xs: list[Tensor], q: Tensor, k_lin: Any) -> Any:
    """Attention over meta-paths in `HANConv`: the mean over nodes counts real ones only."""
    mask = current_form().mask_of(len(xs[0]), "HANConv") if xs else None
    if mask is None:
        return original(xs, q, k_lin)
    out = torch.stack(xs)
    weight = (mask / mask.sum().clamp(min=1)).to(out.dtype)
    # Filler may be huge: switched off before, not only after, the sum.
    keys = torch.tanh(k_lin(torch.where(mask[:, None], out, 0.0)))
    attention = F.softmax((q * (keys * weight[:, None]).sum(dim=1)).sum(dim=-1), dim=0)
    return torch.sum(attention.view(len(xs), 1, -1) * out, dim=0), attention


def gps_conv(
    original: Any, self: Any, x: Tensor, edge_index: Any, batch: Tensor | None = None, **kwargs: Any
) -> Any:
    """`GPSConv.forward` once the number of graphs and the largest graph are known."""
    form = current_form()
    if batch is None or form.num_graphs is None or form.max_num_nodes is None:
        return original(self, x, edge_index, batch, **kwargs)
    from torch_geometric.utils import to_dense_batch

    parts = []
    if self.conv is not None:
        local = self.conv(x, edge_index, **kwargs)
        local = F.dropout(local, p=self.dropout, training=self.training) + x
        parts.append(_gps_norm(self, self.norm1, local, batch))
    width = form.max_num_nodes
    dense, mask = to_dense_batch(x, batch, batch_size=form.num_graphs, max_num_nodes=width)
    if isinstance(self.attn, torch.nn.MultiheadAttention):
        dense, _ = self.attn(dense, dense, dense, key_padding_mask=~mask, need_weights=False)
    else:
        dense = self.attn(dense, mask=mask)
    # Boolean indexing would count; positions do not.
    attended = dense.reshape(-1, dense.shape[-1])[dense_positions(batch, form.num_graphs, width)]
    attended = F.dropout(attended, p=self.dropout, training=self.training) + x
    parts.append(_gps_norm(self, self.norm2, attended, batch))
    out = torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]
    out = out + self.mlp(out)
    return _gps_norm(self, self.norm3, out, batch)


def _gps_norm(layer: Any, norm: Any, x: Tensor, batch: Tensor) -> Any:
    if norm is None:
        return x
    return norm(x, batch=batch) if layer.norm_with_batch else norm(x)


def hetero_linear(original: Any, self: Any, x: Tensor, type_vec: Tensor) -> Tensor:
    """`HeteroLinear.forward`: every type's weights on every row, the right one chosen by mask."""
    out = x.new_zeros(len(x), self.out_channels)
    for kind in range(self.num_types):
        out = torch.where((type_vec == kind)[:, None], x @ self.weight[kind], out)
    return out if self.bias is None else out + self.bias[type_vec]

"""PyG's DimeNet++ on edges and triplets that are given, not searched."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn.models import DimeNetPlusPlus
from torch_geometric.utils import scatter


class DimeNetOnTriplets(DimeNetPlusPlus):
    """PyG's layers and weights; only forward is another.

    PyG's own searches edges with torch_cluster and triplets with torch_sparse in each call, which
    needs both and makes shapes depend on the data. The rest of it is repeated here.
    """

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        edge_index: Tensor,
        triplet_index: Tensor,
        batch: Tensor,
        num_graphs: int,
    ) -> Tensor:
        """Return a number for each graph.

        Args:
            z: Elements, [num_nodes].
            pos: Positions, [num_nodes, 3]; must not ask for gradients, which filler has not.
            edge_index: Edges j -> i, [2, num_edges]. Loops are filler.
            triplet_index: Which edge k -> j comes before which edge j -> i, [2, num_triplets].
            batch: Graph of each node.
            num_graphs: Filler included.
        """
        j, i = edge_index
        idx_kj, idx_ji = triplet_index
        dist = (pos[i] - pos[j]).pow(2).sum(dim=-1).sqrt()
        # The basis divides by the distance. At the cutoff it is zero, so filler sends nothing.
        dist = torch.where(i == j, self.cutoff, dist)
        idx_i, idx_j, idx_k = i[idx_ji], j[idx_ji], j[idx_kj]
        pos_jk, pos_ij = pos[idx_j] - pos[idx_k], pos[idx_i] - pos[idx_j]
        a = (pos_ij * pos_jk).sum(dim=-1)
        b = torch.cross(pos_ij, pos_jk, dim=1).norm(dim=-1)
        rbf = self.rbf(dist)
        sbf = self.sbf(dist, torch.atan2(b, a), idx_kj)

        x = self.emb(z, rbf, i, j)
        out = self.output_blocks[0](x, rbf, i, num_nodes=len(z))
        for interaction, output in zip(
            self.interaction_blocks, self.output_blocks[1:], strict=True
        ):
            x = interaction(x, rbf, sbf, idx_kj, idx_ji)
            out = out + output(x, rbf, i, num_nodes=len(z))
        return scatter(out, batch, dim=0, dim_size=num_graphs, reduce="sum")

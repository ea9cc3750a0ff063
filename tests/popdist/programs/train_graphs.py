"""Trains a graph network on fixed-size batches, as public programs for PopTorch Geometric do.

python3 train_graphs.py --replicas 2 --output folder
poprun --num-instances=2 --num-replicas=2 python3 train_graphs.py --output folder
"""

import argparse
import os

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool

import popdist.poptorch
import poptorch
from poptorch_geometric import FixedSizeDataLoader, FixedSizeOptions, FixedSizeStrategy


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(4, 8, add_self_loops=False)
        self.linear = torch.nn.Linear(8, 1)

    def forward(self, x, edge_index, batch, y, graphs_mask):
        x = self.conv(x, edge_index).relu()
        out = self.linear(global_add_pool(x, batch, size=graphs_mask.shape[0])).squeeze(-1)
        if not self.training:
            return out
        error = torch.where(graphs_mask, (out - y) ** 2, 0.0)
        return out, poptorch.identity_loss(error.sum() / graphs_mask.sum(), reduction="none")


def create_dataset():
    generator = torch.Generator().manual_seed(3)
    graphs = []
    for index in range(48):
        nodes = 3 + index % 4
        ring = torch.arange(nodes)
        edges = torch.stack([ring, ring.roll(1)])
        x = torch.randn(nodes, 4, generator=generator)
        graphs.append(Data(x=x, edge_index=edges, y=x.sum().reshape(1)))
    return graphs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--replicas", type=int, default=1)
    args = parser.parse_args()

    if popdist.isPopdistEnvSet():
        popdist.init()
        opts = popdist.poptorch.Options(ipus_per_replica=1)
    else:
        opts = poptorch.Options()
        opts.replicationFactor(args.replicas)
    opts.deviceIterations(1)
    opts.randomSeed(0)
    opts.showCompilationProgressBar(False)

    loader = FixedSizeDataLoader(
        create_dataset(),
        batch_size=4,
        fixed_size_options=FixedSizeOptions(num_nodes=24, num_edges=24, num_graphs=4),
        fixed_size_strategy=FixedSizeStrategy.PadToMax,
        add_pad_masks=True,
        options=opts,
    )
    model = Model().train()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    poptorch_model = poptorch.trainingModel(model, opts, optimizer=optimizer)
    losses = []
    for _ in range(2):
        for data in loader:
            _, loss = poptorch_model(data.x, data.edge_index, data.batch, data.y, data.graphs_mask)
            losses.append(loss.flatten())
    result = {"weights": model.state_dict(), "losses": losses}
    name = f"instance{popdist.getInstanceIndex()}.pt"
    torch.save(result, os.path.join(args.output, name))


if __name__ == "__main__":
    main()

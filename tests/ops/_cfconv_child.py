"""A small model of all kernels; run as a script, it trains four steps with the default backend."""

import json
import sys

import torch
from torch import nn

from torchkiln import Options, training_model
from torchkiln.ops import cfconv, cfconv_table, segment_sum


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Embedding(5, 12)
        self.knots = nn.Parameter(torch.randn(16, 12))
        self.filters = nn.Linear(1, 12)
        self.head = nn.Linear(12, 1)

    def forward(self, z, pairs, distances, ways, batch, y):
        x = self.features(z)
        x = x + cfconv_table(x, self.knots, distances, pairs, batch, ways, spacing=0.5)
        x = x + cfconv(x.tanh(), self.filters(distances[:, None]), pairs, batch, ways)
        out = segment_sum(self.head(x), batch, y.shape[0])
        return out, nn.functional.mse_loss(out, y)


def make_inputs():
    """Two molecules, one of them with one-way and idle pairs, and filler."""
    torch.manual_seed(1)
    pairs = [torch.triu_indices(4, 4, 1), torch.triu_indices(3, 3, 1) + 4, torch.full((2, 3), 7)]
    ways = torch.tensor([3, 3, 1, 2, 0, 3, 3, 3, 3, 0, 0, 0], dtype=torch.uint8)
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])
    distances = torch.rand(12) * 6
    return torch.arange(8) % 5, torch.cat(pairs, dim=1), distances, ways, batch, torch.randn(3, 1)


def main():
    model = Model()
    options = Options(cache_dir=sys.argv[1], show_progress=False)
    program = training_model(model, options, torch.optim.Adam(model.parameters(), lr=0.01))
    losses = [float(program(*make_inputs())[1]) for _ in range(4)]
    print(json.dumps({"compiles": program.num_compiles, "losses": losses}))


if __name__ == "__main__":
    main()

"""Find the slow line of a model, mend it, and see the difference: docs/profiling.md explains it.

python examples/profile_a_model.py
torchkiln profile show profiles/before --by line
torchkiln profile diff profiles/before profiles/after --by line
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import torchkiln
from torchkiln.profiling import write_report


class Prototypes(nn.Module):
    """Classifies images by their distances to learnt prototypes."""

    def __init__(self, width: int = 128, num_prototypes: int = 256, num_classes: int = 10) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, width))
        self.prototypes = nn.Parameter(torch.randn(num_prototypes, width))
        self.head = nn.Linear(num_prototypes, num_classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        codes = self.encoder(images)
        distances = self.distances(codes)
        scores = self.head(torch.exp(-distances / codes.shape[-1]))
        return nn.functional.cross_entropy(scores, labels)

    def distances(self, codes: torch.Tensor) -> torch.Tensor:
        return (codes[:, None] - self.prototypes).square().sum(dim=-1)


class FasterPrototypes(Prototypes):
    """The same, with one matrix product instead of all differences."""

    def distances(self, codes: torch.Tensor) -> torch.Tensor:
        ones = codes.new_ones(1, codes.shape[-1])
        lengths = codes.square() @ ones.T + ones @ self.prototypes.square().T
        return lengths - 2 * codes @ self.prototypes.T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=Path("profiles"), help="for the reports")
    folder = parser.parse_args().output_dir
    images, labels = torch.rand(512, 784), torch.randint(0, 10, (512,))
    for name, kind in (("before", Prototypes), ("after", FasterPrototypes)):
        torch.manual_seed(0)
        model = kind()
        optimizer = torch.optim.Adam(model.parameters())
        program = torchkiln.training_model(model, optimizer=optimizer)
        for path in write_report(program.profile(images, labels), folder / name):
            print(path)


if __name__ == "__main__":
    main()

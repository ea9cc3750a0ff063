"""SchNet for inference: tables of filters computed once per weights."""

from __future__ import annotations

import abc
import copy
from typing import final

import torch
from torch import Tensor, nn

from torchkiln.models._interaction import Convolve


class TabulatedModel(nn.Module):
    """A SchNet as `BakedSchNet` sees it: convolutions take the tables that they are given."""

    num_interactions: int
    embedding: nn.Embedding

    @abc.abstractmethod
    def tables(self, *, in_float64: bool = False) -> tuple[Tensor, ...]:
        """Return the splines of each interaction's filters."""

    @abc.abstractmethod
    def table_convolution(
        self,
        tables: tuple[Tensor, ...],
        edge_index: Tensor,
        edge_weight: Tensor,
        batch: Tensor,
        edge_ways: Tensor | None,
    ) -> Convolve:
        """Return convolutions with filters whose splines are `tables`."""

    @abc.abstractmethod
    def evaluate(
        self, z: Tensor, batch: Tensor, convolve: Convolve, num_graphs: int, pos: Tensor | None
    ) -> Tensor:
        """Return predictions, with convolutions that are given as a function."""


@final
class BakedSchNet(nn.Module):
    """A copy of a `SchNet` whose filters are tables that do not change. Made by `SchNet.bake`.

    Its forward is that of `SchNet`. Training the original afterwards does not change it;
    `refresh` takes over new weights in place, so a program that was compiled with it goes on
    without recompiling.
    """

    tables: Tensor

    def __init__(self, model: TabulatedModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.register_buffer("tables", self._compute_tables(), persistent=False)

    def refresh(self, model: TabulatedModel) -> None:
        """Take over the present weights of `model`, which has the same sizes."""
        self.model.load_state_dict(model.state_dict())
        self.tables.copy_(self._compute_tables())

    @torch.no_grad()
    def _compute_tables(self) -> Tensor:
        tables = self.model.tables(in_float64=True)
        return torch.stack(tables) if tables else self.model.embedding.weight.new_empty(0)

    def forward(
        self,
        z: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor,
        batch: Tensor,
        *,
        num_graphs: int,
        edge_ways: Tensor | None = None,
        pos: Tensor | None = None,
    ) -> Tensor:
        """Return one prediction for each molecule, [num_graphs, 1]; arguments as for `SchNet`."""
        tables = self.tables.unbind(0) if self.model.num_interactions else ()
        convolve = self.model.table_convolution(tables, edge_index, edge_weight, batch, edge_ways)
        return self.model.evaluate(z, batch, convolve, num_graphs, pos)

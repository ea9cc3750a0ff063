"""Training on one number for each molecule of a fixed-size batch."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from torchkiln.core import ArgumentError, to_choice
from torchkiln.ops import masked_l1_loss, masked_mse_loss

_LOSSES = {"mse": masked_mse_loss, "mae": masked_l1_loss}


@final
class MoleculeRegression(nn.Module):
    """A model with its loss, as `training_model` wants it.

    Args:
        model: Called as `model(z, edge_index, edge_weight, batch, num_graphs=..., edge_ways=...)`;
            returns one number for each graph. `SchNet`, or one's own.
        loss: "mse", the mean squared error, or "mae", the mean absolute error.

    Raises:
        OptionsError: if there is no such loss.
    """

    def __init__(self, model: nn.Module, loss: Literal["mse", "mae"] = "mse") -> None:
        super().__init__()
        to_choice(_LOSSES, loss, "loss")
        self.model = model
        self.loss = loss

    def forward(
        self,
        z: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor,
        edge_ways: Tensor | None,
        batch: Tensor,
        y: Tensor,
        graph_mask: Tensor,
        pos: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return predictions, [num_graphs], and the mean loss over real molecules.

        Filler counts for nothing, by `graph_mask`; the loss of a batch of filler only is 0, and so
        is its gradient. Predictions for filler are 0.

        Raises:
            ArgumentError: if there is not one target for each graph.
        """
        num_graphs = graph_mask.shape[0]
        if y.numel() != num_graphs:
            raise ArgumentError(
                f"y must hold one target for each of {num_graphs} graphs, got {list(y.shape)}; "
                "choose one target when the dataset is made"
            )
        places = {} if pos is None else {"pos": pos}
        out = self.model(
            z, edge_index, edge_weight, batch, num_graphs=num_graphs, edge_ways=edge_ways, **places
        )
        prediction = torch.where(graph_mask, out.reshape(num_graphs), 0.0)
        return prediction, _LOSSES[self.loss](prediction, y.reshape(num_graphs), graph_mask)

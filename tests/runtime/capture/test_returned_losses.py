"""Several losses among the results of forward: which one is trained, and what is said about it."""

import pytest
import torch
from _linear_loss import CAPTURE, LinearLoss, batch, plain

from torchkiln import training_model


def test_a_mean_of_a_returned_vector_of_losses_is_what_is_trained():
    module = LinearLoss(lambda per, weight: {"loss": per.mean(), "per": per}, reduction="none")
    reference = LinearLoss(plain)
    reference.load_state_dict(module.state_dict())
    training_model(module, CAPTURE, torch.optim.SGD(module.parameters(), lr=0.1))(*batch())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(*batch()).backward()
    optimizer.step()
    torch.testing.assert_close(module.layer.weight, reference.layer.weight)


def test_returning_a_loss_and_a_total_made_of_it_warns_which_one_counts():
    module = LinearLoss(lambda mse, weight: {"loss": mse + weight.square().sum(), "mse": mse})
    program = training_model(module, CAPTURE)
    with pytest.warns(UserWarning, match="identity_loss"):
        program(*batch())


def test_a_detached_component_beside_the_total_trains_the_total():
    module = LinearLoss(lambda mse, weight: (mse + weight.square().sum(), mse.detach()))
    reference = LinearLoss(lambda mse, weight: mse + weight.square().sum())
    reference.load_state_dict(module.state_dict())
    training_model(module, CAPTURE, torch.optim.SGD(module.parameters(), lr=0.1))(*batch())
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(*batch()).backward()
    optimizer.step()
    torch.testing.assert_close(module.layer.weight, reference.layer.weight)

"""Random operations draw what eager PyTorch draws: same numbers, same order, same places."""

import copy

import pytest
import torch
from torch import nn

from torchkiln import Options, training_model

WIDTH = 16


class Noisy(nn.Module):
    """Many kinds of random operations, among them masks that are not contiguous."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.3, batch_first=True)
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("noise", torch.zeros(WIDTH))

    def forward(self, x, y):
        self.noise.normal_(0.0, 0.1)
        x = x + self.noise + 0.1 * torch.rand_like(x)
        x = x[torch.randperm(x.shape[0])]
        x = self.encoder(x)
        keep = torch.bernoulli(torch.full_like(x, 0.8))
        x = x * keep * torch.randint(1, 3, (WIDTH,))
        x = nn.functional.dropout(x.transpose(1, 2), 0.2, self.training).transpose(1, 2)
        out = self.head(x).squeeze(-1) + 0.01 * torch.randn(x.shape[:2])
        return out, nn.functional.mse_loss(out, y)


@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        "capture",
        pytest.param("inductor", marks=[pytest.mark.inductor, pytest.mark.slow]),
    ],
)
def test_losses_noise_and_generator_follow_eager(backend, cache_dir):
    module = Noisy()
    reference = copy.deepcopy(module)
    x, y = torch.randn(4, 8, WIDTH), torch.randn(4, 8)
    options = Options(backend=backend, cache_dir=cache_dir, show_progress=False)
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=0.05))
    program.compile(x, y)

    torch.manual_seed(11)
    losses = [program(x, y)[1] for _ in range(4)]
    state = torch.get_rng_state()

    torch.manual_seed(11)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    for loss in losses:
        optimizer.zero_grad()
        expected = reference(x, y)[1]
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(module.noise, reference.noise)

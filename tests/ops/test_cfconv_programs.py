"""The convolution inside programs: recorded, compiled, and run from the cache elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import _cfconv_child
import pytest
import torch
from _cfconv_child import Model, make_inputs

from torchkiln import Options, training_model
from torchkiln.ops import cfconv_table, segment_sum

NUM_KNOTS, SPACING = 16, 0.5


def eager_losses(steps):
    model, inputs = Model(), make_inputs()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        _, loss = model(*inputs)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_a_captured_program_trains_as_eager_torch_does():
    model, inputs = Model(), make_inputs()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = Options(backend="capture", show_progress=False)
    program = training_model(model, options, optimizer)
    losses = [float(program(*inputs)[1]) for _ in range(4)]
    assert losses == pytest.approx(eager_losses(4), rel=1e-5)
    assert losses[-1] < losses[0]


def test_forces_can_be_trained_on_in_a_captured_program():
    pairs, batch = torch.triu_indices(5, 5, 1), torch.zeros(5, dtype=torch.long)
    ways = torch.full((10,), 3, dtype=torch.uint8)

    class Forces(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.knots = torch.nn.Parameter(torch.randn(NUM_KNOTS, 6))

        def forward(self, x, pos, forces):
            pos = pos.detach().requires_grad_()
            distances = (pos[pairs[0]] - pos[pairs[1]]).norm(dim=1)
            nodes = cfconv_table(x, self.knots, distances, pairs, batch, ways, spacing=SPACING)
            energy = segment_sum(nodes.square().sum(1), batch, 1).sum()
            (slope,) = torch.autograd.grad(energy, pos, create_graph=True)
            return torch.nn.functional.mse_loss(-slope, forces)

    inputs = (torch.randn(5, 6), torch.randn(5, 3), torch.randn(5, 3))
    model, twin = Forces(), Forces()
    options = Options(backend="capture", show_progress=False)
    program = training_model(model, options, torch.optim.SGD(model.parameters(), lr=1e-4))
    optimizer = torch.optim.SGD(twin.parameters(), lr=1e-4)
    for _ in range(3):
        optimizer.zero_grad()
        loss = twin(*inputs)
        loss.backward()
        optimizer.step()
        assert float(program(*inputs)) == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(model.knots, twin.knots)


def test_operators_keep_their_promises_to_the_compiler():
    pairs, batch = torch.triu_indices(4, 4, 1), torch.zeros(4, dtype=torch.long)
    ways = torch.tensor([3, 1, 2, 3, 0, 3], dtype=torch.uint8)
    x = torch.randn(4, 3, requires_grad=True)
    filters = torch.randn(6, 3, requires_grad=True)
    table = torch.randn(9, 3, requires_grad=True)
    distances = (torch.rand(6) * 5).requires_grad_()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    ops = torch.ops.torchkiln
    edges = (pairs, batch, ways)
    for operator, arguments in {
        ops.cfconv: (x, filters, *edges, False),
        ops.cfconv_edge_products: (x, x * 2, *edges, True),
        ops.cfconv_table: (x, table, distances, None, *edges, 1.0, 0, False),
        ops.cfconv_table_gradient: (x, x * 2, distances, None, 9, *edges, 1.0, 1, True),
        ops.cfconv_table_backward: (x, x * 2, table, distances, None, *edges, 1.0, 0, True),
        ops.cfconv_edge_dots: (x, x * 2, table, distances, distances, *edges, 1.0, 1, False),
        ops.segment_sum: (x, batch, 2),
    }.items():
        torch.library.opcheck(operator.default, arguments, test_utils=tests)


@pytest.mark.inductor
def test_an_executable_trains_and_runs_from_the_cache_of_another_process(tmp_path):
    script = Path(_cfconv_child.__file__)

    def run():
        command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "cache")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    first, second = run(), run()
    assert (first["compiles"], second["compiles"]) == (1, 0)
    assert first["losses"] == second["losses"]
    assert first["losses"] == pytest.approx(eager_losses(4), rel=1e-4)

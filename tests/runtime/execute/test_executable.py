"""What differs between backends, asked of the executable."""

import torch
from torch import nn

from torchkiln.core import Options
from torchkiln.runtime import inference_model, training_model


class Half(nn.Module):
    """A second layer that the loss reaches only if asked to."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 1), nn.Linear(3, 1)
        self.scale = torch.tensor(2.0)
        self.uses_second = False

    def forward(self, x):
        result = self.first(x) * self.scale
        if self.uses_second:
            result = result + self.second(x)
        return nn.functional.mse_loss(result, torch.zeros_like(result))


def executable(backend):
    torch.manual_seed(0)
    program = training_model(Half(), Options(backend=backend, show_progress=False))
    program(torch.ones(4, 3))
    return program, program._built.executable


def test_a_recorded_graph_knows_everything_ahead():
    program, recorded = executable("capture")
    assert not recorded.writes_constants
    assert recorded.reached is None
    assert recorded.output_node(program.metadata.node) is program.metadata.node


def test_the_eager_backend_learns_from_its_runs():
    program, eager = executable("eager")
    assert eager.writes_constants
    assert eager.reached == {0, 1}
    program.module.uses_second = True
    program(torch.ones(4, 3))
    assert eager.reached == {0, 1, 2, 3}


def test_eager_outputs_may_have_another_structure_each_time():
    class Growing(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return [x] * self.calls

    program = inference_model(Growing(), Options(backend="eager"))
    assert [len(program(torch.ones(2))) for _ in range(3)] == [1, 2, 3]

"""Moving captured graphs to channels last."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from torchkiln.core import Options
from torchkiln.runtime import training_model
from torchkiln.runtime.capture._capture import Entry, capture
from torchkiln.runtime.optim._tables import empty_tables
from torchkiln.runtime.passes._layouts import move_to_channels_last

aten = torch.ops.aten


class Images(nn.Module):
    """Convolutions, a skip connection, and a flattening that was recorded as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16 * 8 * 8, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.first(x))
        hidden = hidden + F.relu(self.second(hidden))
        return hidden, F.cross_entropy(self.head(hidden.flatten(1)), y)


def captured_step() -> tuple[Entry, list[Tensor]]:
    torch.manual_seed(0)
    module = Images()
    program = training_model(module, Options(backend="capture", show_progress=False))
    example = (torch.randn(2, 3, 8, 8), torch.tensor([0, 3]))
    step, _, batch = program._begin(example, {})
    arrangement = program._arrange(step)
    assert arrangement is not None
    entry = capture(step, batch, arrangement).entries["step"]
    own = [bound.tensor.detach() for bound in step.binding.bound]
    tables = [torch.ones(table.shape) for table in empty_tables(arrangement)]
    return entry, [*own, *tables, *batch]


def moved(entry: Entry) -> fx.GraphModule:
    graph = copy.deepcopy(entry.graph)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        move_to_channels_last(
            graph, [mode.from_tensor(torch.empty(t.shape, dtype=t.dtype)) for t in entry.inputs]
        )
    return graph


def run(graph: fx.GraphModule, inputs: list[Tensor]) -> list[Tensor]:
    own = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        return [*graph(*own), *own]


def test_numbers_stay_the_same():
    entry, inputs = captured_step()
    before = run(entry.graph, inputs)
    after = run(moved(entry), inputs)
    for expected, got in zip(before, after, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_the_image_is_converted_once_for_forward_and_backward():
    entry, _ = captured_step()
    graph = moved(entry)
    conversions = [
        node
        for node in graph.graph.find_nodes(op="call_function", target=aten.clone.default)
        if node.kwargs.get("memory_format") is torch.channels_last
    ]
    assert len(conversions) == 1
    users = {user.target for user in conversions[0].users}
    assert users == {aten.convolution.default, aten.convolution_backward.default}


def test_results_keep_their_layout():
    entry, inputs = captured_step()
    image, *_ = run(moved(entry), inputs)
    assert image.is_contiguous()


def test_a_graph_with_fixed_strides_is_left_alone():
    graph = fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    strided = graph.call_function(aten.as_strided.default, (x, [1, 3, 4, 4], [48, 16, 4, 1]))
    args = (strided, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    graph.output([graph.call_function(aten.convolution.default, args)])
    module = fx.GraphModule(nn.Module(), graph)
    before = str(module.graph)
    move_to_channels_last(module, [torch.empty(48), torch.empty(2, 3, 1, 1)])
    assert str(module.graph) == before

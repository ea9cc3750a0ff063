"""Every operation can be recorded on tensors that have shapes but no values."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torchkiln import ops


def _beam_search(x):
    return ops.ctc_beam_search(x.log_softmax(-1).unsqueeze(1), torch.tensor([5]))[0]


CASES = {
    "slice": lambda x: ops.dynamic_slice(x, 0, x.argmax().reshape(1) % 3, 2),
    "update": lambda x: ops.dynamic_update(x, x[:2], 0, x.argmax() % 3, 2),
    "repeat": lambda x: ops.repeat(3, lambda a: [a * 2], [x])[0],
    "choose": lambda x: ops.choose(x.sum() > 0, torch.sin, [x], torch.cos, [x])[0],
    "farthest": lambda x: ops.farthest_points(x, [0, 3, 5]),
    "nearest": lambda x: ops.nearest(x, x * 1.1, [0, 0, 0, 1, 1], torch.tensor([0, 0, 1, 1, 1])),
    "beam_search": _beam_search,
    "print": lambda x: ops.print_tensor(x, "x"),
}


@pytest.mark.parametrize("name", CASES)
def test_recorded_graph_gives_the_same_values(name, capsys):
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        graph = make_fx(CASES[name])(mode.from_tensor(torch.zeros(5, 4)))
    assert capsys.readouterr().err == ""
    torch.testing.assert_close(graph(x), CASES[name](x))

import pytest
import torch
from _pg_graphs import make_graphs
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_mean_pool

import poptorch
from poptorch_geometric import FixedSizeOptions, TrainingStepper, set_aggregation_dim_size
from poptorch_geometric.collate import FixedSizeCollater

OPTIONS = poptorch.Options()
OPTIONS.showCompilationProgressBar(False)


class GCN(nn.Module):
    def __init__(self, num_graphs, scale=None):
        super().__init__()
        self.conv = GCNConv(3, 8, add_self_loops=False)
        self.readout = nn.Linear(8, 1)
        self.num_graphs = num_graphs
        self.scale = scale

    def forward(self, x, edge_index, batch, y):
        h = self.conv(x, edge_index).relu()
        out = self.readout(global_mean_pool(h, batch, self.num_graphs)).flatten()
        if self.scale is not None and poptorch.isRunningOnIpu():
            out = out * self.scale
        out = out[: self.num_graphs - 1]
        return out, nn.functional.mse_loss(out, y[: self.num_graphs - 1])


def arguments(batch):
    return batch.x, batch.edge_index, batch.batch, batch.y


@pytest.fixture
def padded():
    return arguments(FixedSizeCollater(FixedSizeOptions(40, 60, 5))(make_graphs(4)))


def make_stepper(module, **settings):
    return TrainingStepper(module, options=OPTIONS, rtol=1e-4, atol=1e-5, **settings)


def test_a_padded_gcn_trains_as_in_plain_pytorch(padded):
    stepper = make_stepper(GCN(5), lr=0.01)
    before = stepper.cpu_model.readout.weight.clone()
    stepper.run(4, padded)
    assert not torch.equal(stepper.cpu_model.readout.weight, before)
    stepper.run_inference(padded)


def test_separate_batches_are_compared_in_the_rows_that_both_have():
    class Nodes(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(3, 8, add_self_loops=False)

        def forward(self, x, edge_index, weight):
            out = self.conv(x, edge_index)
            return out, poptorch.identity_loss((out * weight).square().sum(), "none")

    plain = Batch.from_data_list(make_graphs(4))
    x = torch.cat([plain.x, torch.zeros(40 - len(plain.x), 3)])
    real = (torch.arange(40) < plain.num_nodes).float()[:, None]
    loops = torch.full((2, 60 - plain.num_edges), 39)
    edge_index = torch.cat([plain.edge_index, loops], dim=1)
    stepper = make_stepper(Nodes())
    stepper.run(2, (plain.x, plain.edge_index, torch.ones(1)), (x, edge_index, real))


def test_a_difference_is_an_error_that_names_it(padded):
    with pytest.raises(AssertionError, match="Output was not equal"):
        make_stepper(GCN(5, scale=1.5)).run(1, padded)
    with pytest.raises(AssertionError, match="Inference output was not equal"):
        make_stepper(GCN(5, scale=1.5)).run_inference(padded)
    stepper = make_stepper(GCN(5))
    with torch.no_grad():
        stepper.cpu_model.readout.weight.add_(1)
    with pytest.raises(AssertionError, match=r"readout\.weight was not equal"):
        stepper.check_parameters()


def test_values_that_are_not_finite_are_an_error(padded):
    with pytest.raises(poptorch.Error, match="NaN or infinity"):
        make_stepper(GCN(5, scale=float("nan"))).ipu_step(padded)
    make_stepper(GCN(5, scale=float("nan")), enable_fp_exception=False).ipu_step(padded)


def test_models_without_parameters_are_compared_in_inference():
    class Double(nn.Module):
        def forward(self, x):
            return x * 2

    stepper = make_stepper(Double())
    stepper.run_inference((torch.ones(2),))
    with pytest.raises(AssertionError, match="no parameters"):
        stepper.run(1, (torch.ones(2),))


def test_benchmarks_report_the_devices_asked_for(padded):
    stepper = make_stepper(GCN(5))
    assert set(stepper.benchmark(1, padded)) == {"ipu_time"}
    assert set(stepper.benchmark(1, padded, ("cpu", "ipu"))) == {"ipu_time", "cpu_time"}
    with pytest.raises(NotImplementedError, match="gpu"):
        stepper.benchmark(1, padded, ("gpu",))


def test_given_options_are_copied():
    options = OPTIONS.clone()
    TrainingStepper(GCN(5), options=options)
    options.deviceIterations(2)  # not frozen


def test_aggregations_get_an_explicit_size():
    conv = GCNConv(3, 8, add_self_loops=False)
    model = nn.Sequential(conv)
    set_aggregation_dim_size(model, 10)
    x, edge_index = torch.randn(4, 3), torch.tensor([[0, 1], [1, 2]])
    out = conv(x, edge_index)
    assert out.shape == (10, 8)
    torch.testing.assert_close(out[4:], conv.bias.expand(6, 8))

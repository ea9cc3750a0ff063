import pytest
import torch
from torch import nn

import poptorch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y=None):
        out = self.layer(x)
        return out if y is None else (out, self.loss(out, y))


def batch(size=8):
    torch.manual_seed(0)
    return torch.randn(size, 3), torch.randint(0, 2, (size,))


@pytest.fixture
def net():
    torch.manual_seed(1)
    return Net()


def test_rng_state_continues_the_stream():
    model = poptorch.inferenceModel(nn.Dropout(0.5).train())
    x = torch.ones(64)
    model(x)
    state = model.rng_state
    first = model(x)
    assert not torch.equal(first, model(x))
    assert isinstance(state[0], int)
    model.rng_state = state
    assert torch.equal(model(x), first)


def test_two_executors_with_one_seed_draw_the_same():
    results = []
    for _ in range(2):
        model = poptorch.inferenceModel(nn.Dropout(0.5).train(), poptorch.Options().randomSeed(42))
        results.append(model(torch.ones(64)))
    assert torch.equal(*results)


def test_anchors_return_gradients_and_updated_weights(net):
    opts = poptorch.Options()
    opts.anchorTensor("grad", "Gradient___layer.weight")
    opts.anchorTensor("new", "UpdatedVar___layer.weight")
    model = poptorch.trainingModel(net, opts, torch.optim.SGD(net.parameters(), lr=0.5))
    before = net.layer.weight.detach().clone()
    with pytest.raises(AssertionError):
        model.getTensorNames()
    with pytest.raises(poptorch.Error, match="Please run the model"):
        model.getAnchoredTensor("grad")
    model(*batch())
    grad, new = model.getAnchoredTensor("grad"), model.getAnchoredTensor("new")
    torch.testing.assert_close(before - 0.5 * grad, new)
    torch.testing.assert_close(new, net.layer.weight.detach())
    assert "Gradient___layer.weight" in model.getTensorNames()
    with pytest.raises(AssertionError, match="Unknown anchor"):
        model.getAnchoredTensor("other")


class Embedded(nn.Module):
    """Has the names of a public program: encoder.embed.conv.0.weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        embed = nn.Module()
        embed.conv = nn.Sequential(nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.ReLU())
        self.encoder = nn.Module()
        self.encoder.embed = embed

    def forward(self, x):
        out = self.encoder.embed.conv(x)
        return x, poptorch.identity_loss(out.square().mean(), reduction="mean")


WEIGHT = "encoder.embed.conv.0.weight"
MEAN = "encoder.embed.conv.1.running_mean"


@pytest.mark.parametrize("scaling", [1.0, 8.0])
@pytest.mark.parametrize(("accumulation", "replicas"), [(1, 1), (2, 1), (2, 2)])
def test_anchored_parameters_and_gradients_equal_those_of_eager_pytorch(
    accumulation, replicas, scaling
):
    net, twin = Embedded(), Embedded()
    opts = poptorch.Options().deviceIterations(3).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    opts.outputMode(poptorch.OutputMode.All)
    opts.anchorTensor("embed.conv.0.weight", WEIGHT)
    opts.anchorTensor("mean", MEAN)
    opts.anchorTensor("grad", f"Gradient___{WEIGHT}")
    opts.anchorTensor("last", f"Gradient___{WEIGHT}", poptorch.OutputMode.Final)
    opts.anchorTensor("new", f"UpdatedVar___{WEIGHT}")
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.5, loss_scaling=scaling)
    model = poptorch.trainingModel(net, opts, optimizer)
    count = accumulation * replicas
    xs, _ = model(torch.randn(3 * count * 2, 1, 5))
    assert {WEIGHT, MEAN, f"Gradient___{WEIGHT}"} <= set(model.getTensorNames())

    reference = torch.optim.SGD(twin.parameters(), lr=0.5)
    weight = twin.encoder.embed.conv[0].weight
    found = {"embed.conv.0.weight": [], "mean": [], "grad": [], "new": []}
    for update in xs.split(count * 2):
        found["embed.conv.0.weight"].append(weight.detach().clone())
        found["mean"].append(twin.get_buffer(MEAN).clone())
        total = [torch.zeros_like(parameter) for parameter in twin.parameters()]
        for x in update.split(2):
            grads = torch.autograd.grad(twin(x)[1], list(twin.parameters()))
            total = [a + b / count for a, b in zip(total, grads, strict=True)]
            found["grad"].append(grads[0])
        for parameter, grad in zip(twin.parameters(), total, strict=True):
            parameter.grad = grad
        reference.step()
        found["new"].append(weight.detach().clone())
    for name, values in found.items():
        torch.testing.assert_close(model.getAnchoredTensor(name), torch.cat(values))
    torch.testing.assert_close(
        model.getAnchoredTensor("last"), torch.cat(found["grad"][-replicas:])
    )


def test_parameters_of_inference_models_can_be_anchored(net):
    opts = poptorch.Options().deviceIterations(2)
    opts.anchorTensor("all", "layer.bias")
    opts.anchorTensor("last", "layer.bias", poptorch.OutputMode.Final)
    model = poptorch.inferenceModel(net, opts)
    model(batch()[0])
    bias = net.layer.bias.detach()
    assert torch.equal(model.getAnchoredTensor("all"), torch.cat([bias, bias]))
    assert torch.equal(model.getAnchoredTensor("last"), bias)


@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
@pytest.mark.parametrize("name", ["nonsense", "Gradient___layer.weigth"])
def test_anchors_of_unknown_tensors_are_refused(net, wrap, name):
    opts = poptorch.Options()
    opts.anchorTensor("short", name)
    with pytest.raises(poptorch.Error, match="no tensor"):
        wrap(net, opts)(*batch())


def test_counters_and_latencies(net):
    model = poptorch.inferenceModel(net, poptorch.Options().deviceIterations(2))
    assert model.getPerfCounters() == {
        key: [[]] for key in ("input", "input_complete", "output", "output_complete")
    }
    assert model.getLatency() == (0.0, 0.0, 0.0)
    model(batch()[0])
    counters = model.getPerfCounters()
    assert [len(times) for times in counters["input"]] == [2]
    shortest, longest, average = model.getLatency()
    assert 0 < shortest <= average <= longest
    assert model.getComputeLatency()[0] > 0


def test_cycle_counts_are_refused_with_the_reason(net):
    with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
        poptorch.inferenceModel(net).cycleCount()
    model = poptorch.inferenceModel(net, poptorch.Options().logCycleCount(True))
    with pytest.raises(poptorch.Error, match="Please run the model at least once"):
        model.cycleCount()
    model(batch()[0])
    with pytest.raises(poptorch.Error, match="no cycle counter"):
        model.cycleCount()


def test_compilation_time_needs_the_progress_bar(net):
    model = poptorch.inferenceModel(net, poptorch.Options().showCompilationProgressBar(False))
    model(batch()[0])
    with pytest.raises(poptorch.Error, match="showCompilationProgressBar"):
        model.compilationTime()


def test_names_are_asserted_to_be_known(net):
    with pytest.raises(AssertionError, match="Model has not been compiled or has been destroyed"):
        poptorch.trainingModel(net).getTensorNames()


def test_the_loss_scale_cannot_be_anchored(net):
    opts = poptorch.Options()
    opts.anchorTensor("scale", "finalLossScale")
    with pytest.raises(NotImplementedError, match=r"finalLossScale.*optimizer\.loss_scaling"):
        poptorch.trainingModel(net, opts)

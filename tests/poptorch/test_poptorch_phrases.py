"""Programs and tests match phrases of the original's messages: ours carry them, too."""

import re

import pytest
import torch
from torch import nn

import poptorch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, a, b, c=1):
        return nn.functional.mse_loss(self.layer(a), b) * c


class Replacing(Net):
    def forward(self, a, b):
        self.count = self.count + 1
        return super().forward(a, b)


class Removing(Net):
    def forward(self, a, b):
        del self.count
        return super().forward(a, b)


class Lossless(Net):
    def forward(self, a, b):
        return self.layer(a) - b


class Twofold(Net):
    def forward(self, a, b):
        return super().forward(a, b) + 5 * super().forward(a, b)


A, B = torch.ones(4, 3), torch.ones(4, 2)


def call(*first, then=(), kind=Net, options=None, **keywords):
    model = poptorch.trainingModel(kind(), options)
    result = model(*first)
    model(*then, **keywords) if then or keywords else None
    return result


def compiled():
    model = poptorch.trainingModel(Net())
    model.compile(A, B)
    return model


def fail_to_wrap_again():
    net = Net()
    first = poptorch.trainingModel(net)
    poptorch.trainingModel(net)
    first.destroy()


def change_half_sums():
    model = compiled()
    parameters = model.model.parameters()
    model.setOptimizer(poptorch.optim.SGD(parameters, lr=0.1, accum_type=torch.half))


def frozen():
    options = poptorch.Options()
    options.freeze()
    options.deviceIterations(2)


def accumulate(training, number):
    options = poptorch.Options().deviceIterations(number)
    options.Training.gradientAccumulation(number)
    return options if training else poptorch.inferenceModel(Net(), options)


ERR = poptorch.Error
PHRASES = {
    "Can't modify frozen Options": (frozen, AttributeError),
    "Unexpected type": (lambda: poptorch.Options().replicationFactor(2.0), AssertionError),
    "Invalid batch dimension": (
        lambda: call(A[:3], B[:3], options=poptorch.Options().deviceIterations(2)),
        AssertionError,
    ),
    "You must set poptorch.Options().Training.gradientAccumulation to 1": (
        lambda: accumulate(False, 2),
        ERR,
    ),
    "already been wrapped": (fail_to_wrap_again, RuntimeError),
    "Couldn't find a loss in graph": (lambda: call(A, B, kind=Lossless), ERR),
    "Multiple independent losses found in graph": (lambda: call(A, B, kind=Twofold), ERR),
    "backward() cannot be called explicitly": (lambda: call(A, B).backward(), ERR),
    "is reassigned within the model": (lambda: call(A, B, kind=Replacing), ERR),
    "is removed from the model": (lambda: call(A, B, kind=Removing), ERR),
    "Trying to run a model on an offline device": (
        lambda: call(A, B, options=poptorch.Options().useOfflineIpuTarget()),
        AssertionError,
    ),
    "Mandatory parameter b missing": (lambda: call(A), ERR),
    "Number of positional arguments mismatch: expected 3 arguments but got 2": (
        lambda: call(A, B, 1, then=(A, B)),
        ERR,
    ),
    "Type mismatch for b: expected <class 'torch.Tensor'> but got <class 'NoneType'>": (
        lambda: call(A, B, then=(A, None)),
        ERR,
    ),
    "expected torch.float32 but got torch.int64": (lambda: call(A, B, then=(A, B.long())), ERR),
    "expected torch.Size([4, 2]) but got torch.Size([2, 2])": (
        lambda: call(A, B, then=(A, B[:2])),
        ERR,
    ),
    "Value mismatch for c: expected 1 but got 3": (lambda: call(A, B, 1, then=(A, B, 3)), ERR),
    "Missing arguments: b": (lambda: call(A, B, then=(A,), c=1), ERR),
    "Unexpected arguments: c": (lambda: call(A, B, then=(A, B), c=1), ERR),
    "Zero-sized tensors are unsupported": (lambda: call(A[:0], B[:0]), ERR),
    "Model has not been compiled or has been destroyed.": (
        lambda: poptorch.inferenceModel(Net()).copyWeightsToHost(),
        ERR,
    ),
    "Device is already attached": (lambda: compiled().attachToDevice(), ERR),
    "Device is not attached": (
        lambda: [model.detachFromDevice() for model in [compiled()] * 2],
        ERR,
    ),
    "Cycle count logging is disabled": (lambda: compiled().cycleCount(), ERR),
    "Unsupported optimizer type": (
        lambda: poptorch.trainingModel(
            Net(), optimizer=torch.optim.Adagrad([nn.Parameter(torch.ones(1))])
        ),
        AssertionError,
    ),
    "is already compiled": (change_half_sums, ValueError),
    "Only IPU optimizer states can be loaded": (
        lambda: poptorch.optim.SGD(Net().parameters(), lr=0.1).load_state_dict({}),
        RuntimeError,
    ),
    "Object is not list": (lambda: poptorch.for_loop(1, None, A), ValueError),
    "at index 1 is not torch.tensor": (lambda: poptorch.for_loop(1, None, [A, 1]), ValueError),
    "Invalid plan type": (lambda: poptorch.MultiConv().planType("a"), AssertionError),
    "Invalid partials types": (lambda: poptorch.MultiConv().partialsTypes("a"), ValueError),
    "already been assigned to a block": (
        lambda: poptorch.BeginBlock(poptorch.BeginBlock(nn.Linear(1, 1))),
        ERR,
    ),
    "must be an even number": (
        lambda: poptorch.Options().TensorLocations.numIOTiles(33),
        AssertionError,
    ),
    "must be callable": (lambda: poptorch.registerPreCompileHook(1), RuntimeError),
    "Invalid log level integer": (lambda: poptorch.setLogLevel(5), ValueError),
    "Unknown log level: x. Valid values are DEBUG, ERR, INFO, OFF, TRACE and WARN": (
        lambda: poptorch.setLogLevel("x"),
        ValueError,
    ),
}


@pytest.mark.parametrize("phrase", PHRASES)
def test_messages_carry_the_phrases_of_the_original(phrase):
    wrong, kind = PHRASES[phrase]
    with pytest.raises(kind, match=re.escape(phrase)):
        wrong()


def test_an_input_that_requires_a_gradient_is_logged_once(caplog):
    model = poptorch.trainingModel(Net())
    inputs = A.clone().requires_grad_()
    model(inputs, B)
    model(inputs, B)
    assert [m for m in caplog.messages if "requires_grad=True" in m and "detached" in m] == [
        caplog.messages[0]
    ]
    assert inputs.grad is None


def test_betas_of_an_optimizer_without_them_are_an_unexpected_attribute(caplog):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    optimizer.param_groups[0]["betas"] = "none"
    model.setOptimizer(optimizer)
    assert "Ignoring unexpected group 0 attribute" in caplog.text


@pytest.mark.parametrize("frozen", ["all", "head"])
def test_a_model_without_gradients_runs_and_warns_once(frozen):
    net = Net()
    (net if frozen == "all" else net.layer).requires_grad_(False)
    before = net.layer.weight.clone()
    model = poptorch.trainingModel(net)
    with pytest.warns(UserWarning, match="nothing is trained") as caught:
        losses = [model(A, B) for _ in range(2)]
    assert len(caught) == 1
    torch.testing.assert_close(losses, [net(A, B)] * 2)
    assert torch.equal(net.layer.weight, before)

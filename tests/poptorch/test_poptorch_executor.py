import copy
import datetime
import io

import pytest
import torch
from torch import nn

import poptorch
from poptorch import OutputMode
from torchkiln.core import DynamicShapeError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.loss = nn.CrossEntropyLoss()
        self.note = "mine"

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


def eager_steps(net, lr, batches):
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        _, loss = net(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return net, torch.stack(losses)


# wrapping


def test_default_optimizer_is_sgd_with_lr_one_hundredth(net):
    x, y = batch()
    expected, losses = eager_steps(net, 0.01, [(x, y)] * 3)
    model = poptorch.trainingModel(net)
    got = torch.stack([model(x, y)[1] for _ in range(3)])
    torch.testing.assert_close(got, losses)
    torch.testing.assert_close(net.state_dict(), expected.state_dict())


def test_device_iterations_and_accumulation_follow_the_batching_order(net):
    x, y = batch(24)
    halves = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 24, 4)]
    opts = poptorch.Options().deviceIterations(3).outputMode(OutputMode.All)
    opts.Training.gradientAccumulation(2)
    # Mean over two micro-batches of equal size is the mean over their union.
    expected, _ = eager_steps(net, 0.1, [(x[i : i + 8], y[i : i + 8]) for i in (0, 8, 16)])
    model = poptorch.trainingModel(net, opts, torch.optim.SGD(net.parameters(), lr=0.1))
    out, loss = model(x, y)
    assert (out.shape, loss.shape) == ((24, 2), (len(halves),))
    torch.testing.assert_close(net.state_dict(), expected.state_dict())


def test_training_marks_the_users_module_and_destroy_unmarks_it(net):
    model = poptorch.trainingModel(net)
    assert model.model is net
    assert type(net).__name__ == "PoptorchNet"
    assert isinstance(net, Net)
    with pytest.raises(RuntimeError, match="already been wrapped"):
        poptorch.trainingModel(net)
    net.destroy()
    assert type(net) is Net
    poptorch.trainingModel(net)


def test_a_module_whose_executor_is_gone_can_be_wrapped_again(net):
    model = poptorch.trainingModel(net)
    del model
    poptorch.trainingModel(net)(*batch())


def test_inference_executes_a_copy_with_its_own_training_flag(net):
    model = poptorch.inferenceModel(net)
    assert model.model is not net
    assert model.model.layer is net.layer
    assert model.eval() is model
    assert net.training
    assert not model.training
    assert type(net) is Net


def test_top_level_flag_of_training_is_the_one_at_wrap_time(net):
    class Flagged(Net):
        def forward(self, x, y=None):
            loss = self.loss(self.layer(x), y)
            return loss if self.training else loss * 0.0 + 5.0

    flagged = Flagged().train()
    model = poptorch.trainingModel(flagged)
    model.eval()
    assert not flagged.training
    assert model(*batch()) != 5.0


def test_executor_forwards_attributes_and_is_no_module(net):
    model = poptorch.trainingModel(net)
    assert model.note == "mine"
    assert model.layer is net.layer
    assert not isinstance(model, nn.Module)
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = model.nothing_like_it


def test_repr_is_the_tree_with_the_wrapped_name(net):
    poptorch.BeginBlock(net.layer, "first", ipu_id=0)
    assert repr(poptorch.trainingModel(net)) == (
        "PoptorchNet(\n"
        "  (layer): BeginBlock(user_id=first, ipu_id=0) Linear(in_features=3, out_features=2, "
        "bias=True)\n"
        "  (loss): CrossEntropyLoss()\n"
        ")"
    )
    assert repr(poptorch.inferenceModel(nn.Linear(1, 1))).startswith("PoptorchLinear(")


def test_saved_and_copied_modules_have_the_original_class(net):
    poptorch.trainingModel(net)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    for twin in (torch.load(buffer, weights_only=False), copy.deepcopy(net), copy.copy(net)):
        assert type(twin) is Net
        torch.testing.assert_close(twin.state_dict(), net.state_dict())


def test_executors_can_be_wrapped_and_share_weights(net):
    training = poptorch.trainingModel(net)
    inference = poptorch.inferenceModel(training)
    x, y = batch()
    before = inference(x)
    training(x, y)
    assert not torch.equal(before, inference(x))
    torch.testing.assert_close(inference(x), net(x))


@pytest.mark.parametrize("wrong", [{"deviceIterations": 1}, "options", 3])
def test_options_of_another_type_are_refused(net, wrong):
    with pytest.raises(poptorch.Error, match="options must be poptorch"):
        poptorch.inferenceModel(net, wrong)


def test_inference_refuses_accumulation(net):
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match=r"gradientAccumulation to 1.*deviceIterations"):
        poptorch.inferenceModel(net, opts)


def test_options_of_the_executor_are_resolved_and_frozen(net):
    opts = poptorch.Options()
    assert poptorch.trainingModel(net, opts).options.output_mode == OutputMode.Final
    assert poptorch.inferenceModel(net, opts).options.output_mode == OutputMode.All
    assert opts.output_mode == OutputMode.Default
    with pytest.raises(AttributeError):
        poptorch.inferenceModel(net).options.deviceIterations(2)


def test_buffers_of_odd_types_are_refused():
    class Odd(torch.Tensor):
        pass

    net = nn.Linear(1, 1)
    net.register_buffer("odd", torch.ones(1).as_subclass(Odd))
    with pytest.raises(poptorch.Error, match="'odd' is a Odd"):
        poptorch.trainingModel(net)


# compiling and calling


def test_compile_ahead_compiles_once(net, caplog):
    model = poptorch.trainingModel(net)
    x, y = batch()
    assert not model.isCompiled()
    model.compile(x, y)
    assert model.isCompiled()
    model.compile(x, y)
    assert "compiled already" in caplog.text
    model(x, y)
    assert model._program.num_compiles == 1
    assert isinstance(model.compilationTime(), datetime.timedelta)


def test_is_running_on_ipu_only_inside_forward():
    seen = []

    class Asking(nn.Module):
        def forward(self, x):
            seen.append(poptorch.isRunningOnIpu())
            return x + 1

    asking = Asking()
    asking(torch.ones(1))
    poptorch.inferenceModel(asking)(torch.ones(1))
    assert seen == [False, True]
    assert not poptorch.isRunningOnIpu()


def test_backward_on_an_output_explains_itself(net):
    out, loss = poptorch.trainingModel(net)(*batch())
    for tensor in (out, loss, copy.deepcopy(loss)):
        with pytest.raises(poptorch.Error, match=r"backward\(\) cannot be called explicitly"):
            tensor.backward()


def test_outputs_can_be_saved_and_loaded_as_plain_weights(net):
    _, loss = poptorch.trainingModel(net)(*batch())
    buffer = io.BytesIO()
    torch.save({"loss": loss}, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True)["loss"], loss)


class ManyArguments(nn.Module):
    def forward(self, x, y, z=None, *, u=3, **more):
        return x + u


@pytest.mark.parametrize(
    ("args", "kwargs", "fragment"),
    [
        ((torch.ones(2), torch.ones(1)), {}, r"expected torch.Size\(\[1\]\) but got"),
        ((torch.ones(1).long(), torch.ones(1)), {}, "expected torch.float32 but got torch.int64"),
        ((torch.ones(1), torch.ones(1)), {"u": 4}, "Keys mismatch|Value mismatch"),
        ((torch.ones(1), (torch.ones(1),)), {}, "Type mismatch for y: expected <class"),
        ((torch.ones(1), torch.ones(1), torch.ones(1)), {}, "mismatch"),
    ],
)
def test_a_call_unlike_the_compiled_one_is_refused(args, kwargs, fragment):
    model = poptorch.inferenceModel(ManyArguments())
    model(torch.ones(1), torch.ones(1))
    with pytest.raises(poptorch.Error, match=fragment) as refused:
        model(*args, **kwargs)
    assert "destroy()" in refused.value.message


def test_signature_misuse_is_told_apart(net):
    model = poptorch.inferenceModel(net)
    x, y = batch()
    for args, kwargs in (((x, y, x), {}), ((x,), {"z": x}), ((x,), {"x": x})):
        with pytest.raises(AssertionError):
            model(*args, **kwargs)
    with pytest.raises(poptorch.Error, match="Mandatory parameter x missing"):
        model(y=y)


def test_missing_argument_of_a_variadic_forward_is_pythons_type_error():
    class Variadic(nn.Module):
        def forward(self, x, *rest):
            return x

    with pytest.raises(TypeError):
        poptorch.inferenceModel(Variadic())()


def test_indivisible_batch_is_an_assertion(net):
    model = poptorch.inferenceModel(net, poptorch.Options().deviceIterations(3))
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        model(batch(8)[0])


def test_missing_and_ambiguous_losses_are_errors(net):
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        poptorch.trainingModel(net)(batch()[0])

    class Two(Net):
        def forward(self, x, y):
            out = self.layer(x)
            return self.loss(out, y), self.loss(2 * out, y)

    with pytest.raises(poptorch.Error, match="Multiple independent losses found in graph"):
        poptorch.trainingModel(Two())(*batch())


def test_dynamic_shapes_are_errors_with_the_engines_as_cause():
    class Masked(nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises(poptorch.Error, match=r"return x\[x > 0\]") as refused:
        poptorch.inferenceModel(Masked())(torch.randn(4))
    assert isinstance(refused.value.__context__, DynamicShapeError)


def test_floating_point_exceptions_fail_the_call():
    class Log(nn.Module):
        def forward(self, x):
            return x.log()

    opts = poptorch.Options()
    opts.Precision.enableFloatingPointExceptions(True)
    with pytest.raises(poptorch.Error, match="NaN or infinity"):
        poptorch.inferenceModel(Log(), opts)(torch.tensor([-1.0]))


def test_distributions_do_not_check_their_arguments_inside_a_model():
    class Likelihood(nn.Module):
        def forward(self, x):
            return torch.distributions.Normal(x, torch.ones(3)).log_prob(x + 1)

    x = torch.zeros(3)
    torch.testing.assert_close(poptorch.inferenceModel(Likelihood())(x), Likelihood()(x))
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(x, -torch.ones(3))


def test_writes_to_inputs_reach_the_caller():
    class InPlace(nn.Module):
        def forward(self, entries):
            entries["a"][0].mul_(2)

    entries = {"a": [torch.ones(2)]}
    assert poptorch.inferenceModel(InPlace())(entries) is None
    assert entries["a"][0].tolist() == [2, 2]


def test_callables_are_compile_time_constants(net):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, loss_function):
            return loss_function(self.net(x))

    def mean(out):
        return poptorch.identity_loss(out, "mean")

    model = poptorch.trainingModel(WithLoss())
    x, _ = batch()
    assert model(x, mean) > model(x, mean)
    with pytest.raises(poptorch.Error, match="Value mismatch for loss_function"):
        model(x, lambda out: mean(out))


def test_a_reassigned_buffer_is_refused_and_batch_norm_is_not():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count = self.count + 1
            return x + self.count

    with pytest.raises(poptorch.Error, match="'count' is reassigned within the model"):
        poptorch.inferenceModel(Counter())(torch.ones(1))
    norm = nn.BatchNorm1d(3)
    poptorch.inferenceModel(norm)(batch()[0])
    assert norm.num_batches_tracked == 1


def test_offline_models_compile_but_do_not_run(net):
    model = poptorch.inferenceModel(net, poptorch.Options().useOfflineIpuTarget())
    x, _ = batch()
    model.compile(x)
    assert not model.isAttachedToDevice()
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        model(x)
    with pytest.raises(AssertionError, match="offline"):
        model.attachToDevice()


# weights, device, life


def test_copies_check_their_preconditions(net):
    model = poptorch.trainingModel(net)
    for call in (
        model.copyWeightsToHost,
        model.copyWeightsToDevice,
        model.attachToDevice,
        model.detachFromDevice,
        model.compilationTime,
        lambda: model.rng_state,
        lambda: model.save("nowhere"),
    ):
        with pytest.raises(poptorch.Error, match="Model has not been compiled"):
            call()
    model(*batch())
    model.copyWeightsToHost()
    model.copyWeightsToDevice()
    assert model.copyWeightsToHostIfNeeded() is False
    assert net.copyWeightsToHostIfNeeded() is False


def test_weights_loaded_on_the_host_are_used_at_once(net):
    model = poptorch.inferenceModel(net)
    x, _ = batch()
    model(x)
    result = model.load_state_dict({k: torch.zeros_like(v) for k, v in net.state_dict().items()})
    assert result.missing_keys == []
    assert model(x).abs().sum() == 0


def test_named_buffers_are_checked():
    norm = nn.BatchNorm1d(3)
    x, _ = batch()
    model = poptorch.inferenceModel(norm)
    model(x)
    with pytest.raises(poptorch.Error, match="updatableNamedBuffers"):
        model.copyNamedBuffersToDevice()
    opts = poptorch.Options().updatableNamedBuffers(["running_mean"])
    model = poptorch.inferenceModel(norm, opts)
    model(x)
    model.copyNamedBuffersToDevice()
    opts = poptorch.Options().updatableNamedBuffers(["running_men"])
    with pytest.raises(poptorch.Error, match="'running_men'"):
        poptorch.inferenceModel(norm, opts)(x)


def test_attaching_is_tracked(net):
    model = poptorch.inferenceModel(net)
    assert not model.isAttachedToDevice()
    x, _ = batch()
    model(x)
    assert model.isAttachedToDevice()
    with pytest.raises(poptorch.Error, match="already attached"):
        model.attachToDevice()
    model.detachFromDevice()
    assert not model.isAttachedToDevice()
    with pytest.raises(poptorch.Error, match="not attached"):
        model.detachFromDevice()
    model(x)
    assert model.isAttachedToDevice()


def test_a_destroyed_inference_model_takes_another_shape(net):
    model = poptorch.inferenceModel(net)
    model(batch(8)[0])
    model.destroy()
    assert not model.isCompiled()
    assert model(batch(4)[0]).shape == (4, 2)


def test_inference_executors_can_be_pickled(net):
    model = poptorch.inferenceModel(net, poptorch.Options().deviceIterations(2))
    x, _ = batch()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    twin = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(twin(x), model(x))
    with pytest.raises(poptorch.Error, match="Only inference models"):
        torch.save(poptorch.trainingModel(net), io.BytesIO())


@pytest.mark.parametrize("backend", ["capture", "eager"])
def test_backends_agree(net, backend, monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", backend)
    x, y = batch()
    _, losses = eager_steps(net, 0.01, [(x, y)] * 3)
    model = poptorch.trainingModel(net)
    torch.testing.assert_close(torch.stack([model(x, y)[1] for _ in range(3)]), losses)


@pytest.mark.parametrize("forward", [lambda self, a, *b: a, lambda self, a, **b: a])
def test_an_argument_given_twice_is_an_assertion_also_for_variadic_forwards(forward):
    model = poptorch.inferenceModel(type("Variadic", (nn.Module,), {"forward": forward})())
    with pytest.raises(AssertionError, match="given twice"):
        model(torch.ones(1), a=torch.ones(1))


def test_outputs_that_depend_on_nothing_are_warned_about():
    class Constant(nn.Module):
        def forward(self, x):
            return x, torch.ones(3)

    model = poptorch.inferenceModel(Constant(), poptorch.Options().deviceIterations(2))
    with pytest.warns(UserWarning, match="output tensors 1 ") as caught:
        _, constant = model(torch.ones(2))
    assert caught[0].filename == __file__
    assert constant.shape == (3,)


def test_training_in_several_processes_needs_the_others(net):
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    poptorch.inferenceModel(net, opts.clone())(batch()[0])
    with pytest.raises(poptorch.Error, match=r"numProcesses is 2, .* not joined others") as caught:
        poptorch.trainingModel(net, opts)(*batch())
    message = str(caught.value)
    assert "call popdist.init() first" in message
    assert "say Distributed.disable() if" in message
    assert "sync_gradients" not in message
    opts = opts.clone()
    opts.Distributed.disable()
    poptorch.trainingModel(net, opts)(*batch())


def test_a_refused_optimizer_leaves_the_model_as_it_was(net, caplog):
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    model(*batch())
    with pytest.raises(poptorch.Error, match="compiled for SGD, got Adam"):
        model.setOptimizer(poptorch.optim.Adam(net.parameters()))
    assert model._link.optimizer is optimizer
    assert optimizer.state_dict()["ipu_param"] is not None
    assert not caplog.messages

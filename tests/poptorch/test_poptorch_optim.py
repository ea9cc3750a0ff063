import copy
import inspect
import math
import pickle

import pytest
import torch
from torch import nn

import poptorch
from poptorch import optim
from torchkiln import runtime

CLASSES = {
    "SGD": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (optim.Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}),
    "AdamW": (optim.AdamW, torch.optim.AdamW, {"lr": 0.1}),
    "RMSprop": (optim.RMSprop, torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5}),
    "LAMB": (optim.LAMB, runtime.LAMB, {"lr": 0.1}),
}
STEPS = 4


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(3, 1)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(x), y)


def data():
    torch.manual_seed(4)
    return torch.randn(6, 3), torch.randn(6, 1)


def train_eagerly(model, optimizer, clip=None, steps=STEPS):
    x, y = data()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x, y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


@pytest.mark.parametrize("name", CLASSES)
def test_host_steps_equal_torchs(name):
    ours, theirs, kwargs = CLASSES[name]
    one, other = Regression(), Regression()
    train_eagerly(one, ours(one.parameters(), **kwargs))
    train_eagerly(other, theirs(other.parameters(), **kwargs))
    torch.testing.assert_close(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("name", CLASSES)
def test_program_updates_equal_torchs(name):
    ours, theirs, kwargs = CLASSES[name]
    one, other = Regression(), Regression()
    model = poptorch.trainingModel(one, optimizer=ours(one.parameters(), **kwargs))
    for _ in range(STEPS):
        model(*data())
    train_eagerly(other, theirs(other.parameters(), **kwargs))
    torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_gradients_are_clipped_by_their_joint_norm():
    one, other = Regression(), Regression()
    clipped = optim.SGD(one.parameters(), lr=0.5, max_grad_norm=0.1)
    model = poptorch.trainingModel(one, optimizer=clipped)
    for _ in range(STEPS):
        model(*data())
    train_eagerly(other, torch.optim.SGD(other.parameters(), lr=0.5), clip=0.1)
    torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_loss_scaling_changes_no_value():
    results = []
    for scaling in (1.0, 128.0):
        net = Regression()
        optimizer = optim.SGD(net.parameters(), lr=0.1, loss_scaling=scaling)
        model = poptorch.trainingModel(net, optimizer=optimizer)
        for _ in range(STEPS):
            model(*data())
        results.append(net.state_dict())
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_loss_scaling_changes_from_and_to_one_between_steps(accumulation):
    one, other = Regression(), Regression()
    optimizer = optim.Adam(one.parameters(), lr=0.1, max_grad_norm=0.5)
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    model = poptorch.trainingModel(one, options, optimizer)
    batch = [torch.cat([part] * accumulation) for part in data()]
    reference = torch.optim.Adam(other.parameters(), lr=0.1)
    for scaling in (1.0, 128.0, 1.0, 2.0):
        optimizer.loss_scaling = scaling
        model.setOptimizer(optimizer)
        model(*batch)
        train_eagerly(other, reference, clip=0.5, steps=1)
        torch.testing.assert_close(one.state_dict(), other.state_dict())
    assert model._program.num_compiles == 1


@pytest.mark.filterwarnings("ignore:this CPU has no float16 arithmetic")
def test_loss_scaling_keeps_small_gradients_of_half_weights_from_being_lost():
    """The scale is really there after it was 1.0: without it these gradients are zero."""

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.half))

        def forward(self, x):
            out = self.weight * x * 1e-4
            return out, poptorch.identity_loss(out * 1e-4, reduction="sum")

    net = Small()
    optimizer = optim.SGD(net.parameters(), lr=1e6, loss_scaling=1.0)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    x = torch.ones(4, dtype=torch.half)
    model(x)
    assert net.weight.eq(0).all()
    optimizer.loss_scaling = 2.0**14
    model.setOptimizer(optimizer)
    model(x)
    torch.testing.assert_close(
        net.weight.detach().float(), torch.full((4,), -0.01), rtol=0.01, atol=0
    )
    assert model._program.num_compiles == 1


@pytest.mark.parametrize("name", CLASSES)
def test_classes_derive_from_both_sides(name):
    ours, theirs, _ = CLASSES[name]
    assert issubclass(ours, optim.Optimizer)
    assert issubclass(ours, theirs)


def test_torchs_parameters_come_first_and_extras_after():
    names = list(inspect.signature(optim.SGD).parameters)
    assert names[:6] == ["params", "lr", "momentum", "dampening", "weight_decay", "nesterov"]
    names = list(inspect.signature(optim.AdamW).parameters)
    assert names[11:13] == ["loss_scaling", "bias_correction"]
    with pytest.raises(TypeError):
        optim.SGD(Regression().parameters())


def test_extras_are_attributes_with_defaults():
    adam = optim.Adam(Regression().parameters())
    assert (adam.loss_scaling, adam.accum_type, adam.max_grad_norm) == (
        1.0,
        torch.float32,
        math.inf,
    )
    assert adam.param_groups[0]["lr"] == 1e-3
    lamb = optim.LAMB(Regression().parameters(), max_weight_norm=None)
    assert lamb.param_groups[0]["max_weight_norm"] == 65500.0
    assert optim.RMSprop(Regression().parameters()).use_tf_variant is False


def test_accumulation_types_are_checked():
    with pytest.raises(AssertionError, match="accum_type"):
        optim.Adam(Regression().parameters(), accum_type=torch.float64)


def test_explicit_attributes_are_variable():
    sgd = optim.SGD(Regression().parameters(), lr=0.1, loss_scaling=2.0)
    variable = sgd.variable_attrs
    assert not variable.isConstant("lr")
    assert not variable.isConstant("loss_scaling")
    assert variable.isConstant("momentum")
    variable.markAsVariable("momentum")
    variable.markAsConstant("lr")
    assert not variable.isConstant("momentum")
    assert variable.isConstant("lr")
    with pytest.raises(AssertionError, match="Unknown attribute"):
        variable.isConstant("velocity")
    assert optim.Adam(Regression().parameters()).variable_attrs.isConstant("lr")


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_keep_the_extras(copier):
    twin = copier(optim.Adam(Regression().parameters(), lr=0.1, max_grad_norm=2.0))
    assert twin.max_grad_norm == 2.0
    assert not twin.variable_attrs.isConstant("lr")


def test_velocity_scaling_needs_the_combined_variant(caplog):
    optim.SGD(Regression().parameters(), lr=0.1, velocity_scaling=2.0)
    assert "velocity_scaling" in caplog.text
    combined = optim.SGD(
        Regression().parameters(), lr=0.1, velocity_scaling=2.0, use_combined_accum=True
    )
    assert combined.param_groups[0]["velocity_scaling"] == 2.0


# setOptimizer


def test_edits_wait_for_set_optimizer():
    net = Regression()
    optimizer = optim.SGD(net.parameters(), lr=0.0)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    before = copy.deepcopy(net.state_dict())
    optimizer.param_groups[0]["lr"] = 0.5
    model(*data())
    torch.testing.assert_close(net.state_dict(), before)
    model.setOptimizer(optimizer)
    model(*data())
    assert not torch.equal(net.layer.weight, before["layer.weight"])
    assert model._program.num_compiles == 1


def test_unsupported_optimizers_are_refused():
    net = Regression()
    with pytest.raises(AssertionError, match="Unsupported optimizer type"):
        poptorch.trainingModel(net, optimizer=torch.optim.Adagrad(net.parameters()))
    with pytest.raises(AssertionError, match="Unsupported optimizer type"):
        poptorch.trainingModel(net, optimizer="SGD")
    with pytest.raises(ValueError, match="amsgrad"):
        poptorch.trainingModel(net, optimizer=optim.Adam(net.parameters(), amsgrad=True))
    groups = [{"params": [net.layer.weight], "centered": True}, {"params": [net.layer.bias]}]
    with pytest.raises(AssertionError, match="centered"):
        poptorch.trainingModel(net, optimizer=optim.RMSprop(groups))
    assert type(net) is Regression


def test_inference_models_have_no_optimizer():
    net = Regression()
    with pytest.raises(AttributeError, match="inference"):
        poptorch.inferenceModel(net).setOptimizer(optim.Adam(net.parameters()))


@pytest.mark.parametrize(("relaxed", "shown"), [(False, True), (True, False)])
def test_late_attributes_are_reported_once(relaxed, shown, caplog):
    net = Regression()
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    optimizer.early = 1
    opts = poptorch.Options().relaxOptimizerAttributesChecks(relaxed)
    model = poptorch.trainingModel(net, opts, optimizer)
    model.setOptimizer(optimizer)
    assert "unexpected" not in caplog.text
    optimizer.late = 1
    optimizer.param_groups[0]["late"] = 1
    model.setOptimizer(optimizer)
    model.setOptimizer(optimizer)
    count = caplog.text.count("Ignoring unexpected optimizer attribute 'late'")
    assert count == (1 if shown else 0)
    assert ("Ignoring unexpected group 0 attribute 'late'" in caplog.text) is shown


def test_a_python_step_of_a_subclass_is_warned_about(caplog):
    class Mine(optim.SGD):
        def step(self, closure=None):
            raise AssertionError("never executed")

    net = Regression()
    optimizer = Mine(net.parameters(), lr=0.1)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    model(*data())
    model.setOptimizer(optimizer)
    assert caplog.text.count("Mine.step is Python code") == 1


def test_plain_subclasses_are_not_warned_about(caplog):
    class Mine(optim.SGD):
        pass

    net = Regression()
    for kind in (Mine, optim.SGD, torch.optim.SGD):
        model = poptorch.trainingModel(net, optimizer=kind(net.parameters(), lr=0.1))
        model.destroy()
    assert caplog.text == ""


def test_half_sums_switch_to_a_running_mean_before_compilation():
    name = "meanAccumulationAndReplicationReductionStrategy"
    net = Regression()
    half = optim.SGD(net.parameters(), lr=0.1, accum_type=torch.float16)
    opts = poptorch.Options()
    model = poptorch.trainingModel(net, opts, half)
    assert model.options.Training(name) == poptorch.MeanReductionStrategy.Running
    assert opts.Training(name) == poptorch.MeanReductionStrategy.Post
    other = Regression()
    model = poptorch.trainingModel(other, optimizer=optim.SGD(other.parameters(), lr=0.1))
    model(*data())
    late = optim.SGD(other.parameters(), lr=0.1, accum_type=torch.float16)
    with pytest.raises(ValueError, match="already compiled"):
        model.setOptimizer(late)


# state


def test_state_dict_names_tensors_once_compiled():
    net = Regression()
    optimizer = optim.Adam(net.parameters(), lr=0.1)
    assert optimizer.state_dict()["ipu_state"] is None
    model = poptorch.trainingModel(net, optimizer=optimizer)
    model(*data())
    state = optimizer.state_dict()
    assert {"Accl1___layer.weight", "Accl2___layer.bias"} <= set(state["ipu_state"])
    assert state["ipu_param"]["learningRate___specific___layer.weight"].item() == pytest.approx(0.1)
    assert state["ipu_param"]["lossScaling_FLOAT"] == 1.0
    model.destroy()
    assert optimizer.state_dict()["ipu_state"] is None


def test_sgd_scalars_follow_the_originals_formula():
    net = Regression()
    optimizer = optim.SGD(
        net.parameters(), lr=0.5, momentum=0.9, dampening=0.2, weight_decay=0.1, loss_scaling=4.0
    )
    poptorch.trainingModel(net, optimizer=optimizer).compile(*data())
    scalars = optimizer.state_dict()["ipu_param"]
    assert scalars["scaledLearningRate0___specific___layer.weight"].item() == pytest.approx(0.1)
    assert scalars["weightDecayScaleFactor0___specific___layer.bias"].item() == pytest.approx(0.96)


def test_a_loaded_state_continues_the_run():
    straight = Regression()
    model = poptorch.trainingModel(straight, optimizer=optim.Adam(straight.parameters(), lr=0.1))
    for _ in range(2):
        model(*data())
    saved = copy.deepcopy((straight.state_dict(), model._link.optimizer.state_dict()))
    model(*data())

    resumed = Regression()
    resumed.load_state_dict(saved[0])
    optimizer = optim.Adam(resumed.parameters(), lr=0.1)
    optimizer.load_state_dict(saved[1])
    poptorch.trainingModel(resumed, optimizer=optimizer)(*data())
    torch.testing.assert_close(resumed.state_dict(), straight.state_dict())


def test_states_of_plain_torch_are_refused_with_the_way_out():
    net = Regression()
    optimizer = optim.Adam(net.parameters())
    plain = torch.optim.Adam(net.parameters()).state_dict()
    with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded"):
        optimizer.load_state_dict(plain)
    with pytest.raises(RuntimeError):
        optimizer.load_state_dict({})
    torch.optim.Optimizer.load_state_dict(optimizer, plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.2, 3),
        lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, 0.1),
    ],
)
def test_schedulers_made_after_the_model_cause_no_warning(make, caplog):
    model = nn.Linear(2, 2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped = poptorch.trainingModel(model, optimizer=optimizer)
    make(optimizer)
    wrapped.setOptimizer(optimizer)
    assert not caplog.messages

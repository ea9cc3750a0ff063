import pytest
import torch
from torch import nn

import poptorch


class Apply(nn.Module):
    """A module whose forward is any function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def infer(function, *args):
    return poptorch.inferenceModel(Apply(function))(*args)


class Weighted(nn.Module):
    """A training module: the function is applied to the product of input and weight."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.function = function

    def forward(self, x):
        return poptorch.identity_loss(self.function(x * self.weight), "sum")


def gradient_of(function, x):
    """Train one step with lr 1 and return the gradient that was applied."""
    net = Weighted(function)
    before = net.weight.detach().clone()
    poptorch.trainingModel(net, optimizer=poptorch.optim.SGD(net.parameters(), lr=1.0))(x)
    return before - net.weight.detach()


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 6.0), ("mean", 2.0)])
def test_identity_loss_reduces_everywhere(reduction, expected):
    x = torch.tensor([1.0, 2.0, 3.0])
    assert poptorch.identity_loss(x, reduction) == expected
    assert infer(lambda t: poptorch.identity_loss(t, reduction), x) == expected


def test_identity_loss_refuses_other_reductions():
    assert poptorch.identity_loss(torch.ones(2), "none").shape == (2,)
    with pytest.raises(AssertionError, match="Unsupported reduction"):
        poptorch.identity_loss(torch.ones(2), "max")


def test_print_shows_value_and_gradient_of_each_step(capfd):
    gradient = gradient_of(lambda y: poptorch.ipu_print_tensor(y, "y"), torch.ones(2))
    err = capfd.readouterr().err
    assert "y: (1.0000, 2.0000)" in err
    assert "y_gradient: (1.0000, 1.0000)" in err
    torch.testing.assert_close(gradient, torch.ones(2))


def test_print_refuses_an_unknown_format():
    with pytest.raises(KeyError):
        poptorch.ipu_print_tensor(torch.ones(1), float_format="hex")


@pytest.mark.parametrize(
    "function",
    [
        poptorch.nop,
        poptorch.recomputationCheckpoint,
        lambda x: poptorch.set_available_memory(x, 0.3),
        lambda x: poptorch.set_overlap_for_input(x, poptorch.OverlapMode.NoOverlap),
        lambda x: poptorch.set_overlap_for_output([x], poptorch.OverlapMode.NoOverlap)[0],
    ],
)
def test_identities_pass_values_and_gradients(function):
    x = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(infer(function, x), x)
    torch.testing.assert_close(gradient_of(function, x), x)


def test_recomputation_checkpoint_keeps_the_container():
    x, y = torch.ones(1), torch.zeros(1)
    assert isinstance(poptorch.recomputationCheckpoint(x, y), tuple)
    assert isinstance(poptorch.recomputationCheckpoint([x, y]), list)
    with pytest.raises(ValueError, match="takes tensors"):
        poptorch.recomputationCheckpoint(x, 3)


@pytest.mark.parametrize("run", [lambda f, *a: f(*a), infer])
def test_for_loop_runs_the_body_count_times(run):
    def loop(x):
        return poptorch.for_loop(4, lambda a, b: [a * 2, b + 1], [x, x])

    doubled, counted = run(loop, torch.ones(2))
    assert doubled.tolist() == [16, 16]
    assert counted.tolist() == [5, 5]


@pytest.mark.parametrize("run", [lambda f, *a: f(*a), infer])
@pytest.mark.parametrize("flag", [True, False])
def test_cond_takes_the_branch_and_captures_outer_tensors(run, flag):
    def branch(flag, x):
        outer = x * 10
        return poptorch.cond(flag, lambda a: [a + outer], [x], lambda a: [a - outer], [x])

    (result,) = run(branch, torch.tensor([flag]), torch.ones(2))
    assert result.tolist() == ([11, 11] if flag else [-9, -9])


def test_loops_and_branches_are_for_inference_only():
    with pytest.raises(poptorch.Error, match=r"poptorch.for_loop\(\) is only supported in inf"):
        gradient_of(lambda x: poptorch.for_loop(2, lambda a: [a], [x])[0], torch.ones(2))
    condition = torch.tensor(True)
    with pytest.raises(poptorch.Error, match=r"poptorch.cond\(\) is only supported in inference"):
        gradient_of(
            lambda x: poptorch.cond(condition, lambda a: [a], [x], lambda a: [a], [x])[0],
            torch.ones(2),
        )


def test_loop_inputs_must_be_lists_of_tensors():
    with pytest.raises(ValueError, match="Object is not list"):
        poptorch.for_loop(2, lambda a: [a], torch.ones(1))
    with pytest.raises(ValueError, match=r"at index 1 is not torch.tensor"):
        poptorch.for_loop(2, lambda a, b: [a, b], [torch.ones(1), 2])
    with pytest.raises(ValueError, match="Object is not list"):
        poptorch.cond(torch.tensor(True), list, (), list, [])


def test_dynamic_slice_and_update_follow_a_tensor():
    x = torch.arange(6.0)
    sliced = poptorch.inferenceModel(Apply(lambda x, s: poptorch.dynamic_slice(x, 0, s, 4, 2)))
    assert sliced(x, torch.tensor([1])).tolist() == [1, 3]
    assert sliced(x, torch.tensor([2])).tolist() == [2, 4]
    updated = infer(
        lambda x, s: poptorch.dynamic_update(x, torch.zeros(2), 0, s, 2), x, torch.tensor([3])
    )
    assert updated.tolist() == [0, 1, 2, 0, 0, 5]
    with pytest.raises(poptorch.Error, match="same dtype"):
        poptorch.dynamic_update(x, torch.zeros(2).int(), 0, torch.tensor([3]), 2)


def test_serialized_matmul_is_a_matmul():
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    mode = poptorch.MatMulSerializationMode.ReducingDim
    torch.testing.assert_close(poptorch.serializedMatMul(a, b, mode, 3), a @ b)
    with pytest.raises(AssertionError, match="Unexpected mode"):
        poptorch.serializedMatMul(a, b, "reducing_dim")


def test_cpu_op_runs_python_on_every_call():
    calls = []

    def through_numpy(x, y):
        calls.append(x.numpy().sum())
        return torch.from_numpy(x.numpy() * 2), y + 1

    op = poptorch.CPU(through_numpy, "through_numpy")
    model = poptorch.inferenceModel(Apply(lambda x, y: op(x, y)))
    for value in (1.0, 2.0):
        doubled, more = model(torch.full((2,), value), torch.zeros(1))
        assert doubled.tolist() == [2 * value] * 2
        assert more.tolist() == [1.0]
    assert calls[-2:] == [2.0, 4.0]
    with pytest.raises(poptorch.Error, match="function or module"):
        poptorch.CPU(3, "three")
    with pytest.raises(poptorch.Error, match=r"poptorch.CPU\(\) is only supported in inference"):
        gradient_of(lambda x: op(x, x)[0], torch.ones(2))


def test_cpu_op_freezes_a_module_and_returns_a_single_tensor():
    layer = nn.Linear(2, 1)
    op = poptorch.CPU(layer, "layer")
    assert not layer.weight.requires_grad
    x = torch.ones(1, 2)
    torch.testing.assert_close(infer(op, x), layer(x))


def test_decoder_sampling_and_neighbours_run_inside_programs():
    torch.manual_seed(0)
    probs = torch.randn(5, 2, 3).log_softmax(-1)
    inside = infer(poptorch.ctc_beam_search_decoder, probs, torch.tensor([5, 4]))
    outside = poptorch.ctc_beam_search_decoder(probs, torch.tensor([5, 4]))
    for got, expected in zip(inside, outside, strict=True):
        torch.testing.assert_close(got, expected)
    points = torch.randn(6, 3)
    assert torch.equal(
        infer(lambda p: poptorch.fps(p, [0, 4, 6]), points), poptorch.fps(points, [0, 4, 6])
    )
    batches = ([0, 0, 0, 1, 1, 1], torch.tensor([0, 0, 1, 1, 1, 1]))
    assert torch.equal(
        infer(lambda p: poptorch.nearest(p, p.flip(0), *batches), points),
        poptorch.nearest(points, points.flip(0), *batches),
    )
    with pytest.raises(poptorch.Error, match=r"\[T, B, C\]"):
        poptorch.ctc_beam_search_decoder(torch.zeros(3, 2), torch.tensor([3]))


@pytest.mark.parametrize(
    "call",
    [
        lambda: poptorch.nop(3),
        lambda: poptorch.set_available_memory(torch.ones(1), 2.0),
        lambda: poptorch.set_overlap_for_input(torch.ones(1), "no_overlap"),
        lambda: poptorch.set_overlap_for_input(3, poptorch.OverlapMode.NoOverlap),
        lambda: poptorch.fps([1, 2], [0, 2]),
        lambda: poptorch.fps(torch.ones(2, 1), [0]),
        lambda: poptorch.nearest(torch.ones(2, 1), torch.ones(2, 1), [1, 0], [0, 1]),
    ],
)
def test_wrong_arguments_are_errors(call):
    with pytest.raises(poptorch.Error):
        call()


@pytest.mark.slow
@pytest.mark.inductor
def test_operations_work_in_native_code(monkeypatch, capfd):
    monkeypatch.setenv("TORCHKILN_BACKEND", "inductor")
    host = poptorch.CPU(lambda a, b: (torch.from_numpy(a.numpy() * 2), b + 1), "native")

    def everything(x, start, probs, lengths):
        piece = poptorch.dynamic_slice(x, 0, start, 2, 1)
        total = poptorch.ipu_print_tensor(x.sum(), "total")
        return (
            host(x, x),
            poptorch.fps(x, [0, 3, 6]),
            poptorch.nearest(x, x.flip(0), [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1]),
            poptorch.dynamic_update(x, piece, 0, start, 2),
            poptorch.cond(total > 0, lambda t: [t + 1], [x], lambda t: [t - 1], [x]),
            poptorch.for_loop(3, lambda t: [t * 2], [x]),
            torch.ops.poptorch.internal_cast(x, "FLOAT16"),
            poptorch.ctc_beam_search_decoder(probs, lengths, top_paths=2),
        )

    torch.manual_seed(0)
    probs = torch.randn(5, 2, 3).log_softmax(-1)
    inputs = (torch.randn(6, 3), torch.tensor([1]), probs, torch.tensor([5, 4]))
    expected = everything(*inputs)
    model = poptorch.inferenceModel(Apply(everything))
    model.compile(*inputs)
    capfd.readouterr()
    torch.testing.assert_close(model(*inputs), expected)
    assert "total: " in capfd.readouterr().err
    model.destroy()


# annotations


def test_name_scopes_and_attributes_change_nothing():
    def scoped(x):
        with poptorch.NameScope("a"), poptorch.Attribute(__outline={"layer": "b"}):
            torch.ops.poptorch.push_name_scope("c")
            y = torch.ops.poptorch.internal_cast(x, "FLOAT16") * 2
            torch.ops.poptorch.pop_name_scope()
        return y

    assert infer(scoped, torch.ones(2)).dtype == torch.float16
    with pytest.raises(AssertionError):
        poptorch.NameScope(3)
    with pytest.raises(AssertionError):
        poptorch.Attribute(name=3)
    with pytest.raises(poptorch.Error, match="internal_cast"):
        torch.ops.poptorch.internal_cast(torch.ones(1), "INT")
    with pytest.raises(poptorch.Error, match="pop_name_scope"):
        torch.ops.poptorch.pop_name_scope()


def multi_conv():
    return (
        poptorch.MultiConv()
        .availableMemoryProportions([0.1, 0.2])
        .partialsTypes(torch.float)
        .enableConvDithering(False)
        .planType(poptorch.MultiConvPlanType.Parallel)
        .perConvReservedTiles(60)
        .cycleBackOff(0.2)
    )


def test_multi_conv_checks_its_body_inside_programs_only():
    conv = nn.Conv2d(1, 1, 3)
    x = torch.randn(1, 1, 5, 5)

    def with_body(body):
        def run(x):
            with multi_conv():
                return body(x)

        return run

    torch.testing.assert_close(infer(with_body(conv), x), conv(x))
    with_body(torch.relu)(x)
    with pytest.raises(poptorch.Error, match="at least one convolution"):
        infer(with_body(torch.relu), x)
    with pytest.raises(poptorch.Error, match="inside another"):
        infer(with_body(with_body(conv)), x)


def test_multi_conv_settings_are_checked():
    with pytest.raises(AssertionError, match="Invalid plan type"):
        poptorch.MultiConv().planType("parallel")
    with pytest.raises(ValueError, match="Invalid partials types"):
        poptorch.MultiConv().partialsTypes(torch.int8)
    with pytest.raises(AssertionError):
        poptorch.MultiConv().availableMemoryProportions(["a"])


def test_what_is_left_out_says_so():
    with pytest.raises(ValueError, match="ASCII"):
        poptorch.custom_op([], "Cube", "mine", 1, [], {"π": 3.1})
    with pytest.raises(ValueError, match="list of one"):
        poptorch.custom_op([], "Cube", "mine", 1, [], {"a": [1, 2.0]})
    with pytest.raises(NotImplementedError, match="getIpuTensorId"):
        poptorch.getIpuTensorId(torch.ones(1))

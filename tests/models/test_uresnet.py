"""UResNet2D: every kind of it is U-shaped, static, shares weights and merges planes as it says."""

import copy
import itertools

import pytest
import torch
from torch.nn import functional

from torchkiln import Options, training_model
from torchkiln.core import ArgumentError, OptionsError
from torchkiln.models import Segmentation, UResNet2D, UResNetSettings

SMALL = {
    "n_initial_filters": 2,
    "network_depth": 2,
    "blocks_per_layer": 1,
    "blocks_deepest_layer": 1,
    "bottleneck_deepest": 4,
    "filter_size_deepest": 3,
}
KINDS = [
    {"connections": connections, "upsampling": up, "downsampling": down}
    for connections, up, down in itertools.product(
        ("sum", "concat", "none"),
        ("interpolation", "convolutional"),
        ("max_pooling", "convolutional"),
    )
] + [
    {"residual": False},
    {"batch_norm": False},
    {"batch_norm": False, "bias": False},
    {"growth_rate": "multiplicative"},
    {"block_concat": True},
    {"filter_size_deepest": 5, "blocks_deepest_layer": 2, "blocks_per_layer": 2},
]


def make(**changes):
    return UResNet2D(UResNetSettings(**{**SMALL, **changes}))


def loss_of_planes(labels_image, logits_image):
    planes = zip(logits_image, labels_image, strict=True)
    return torch.stack([functional.cross_entropy(*plane, reduction="none") for plane in planes])


def images(batch_size=2, height=8, width=16):
    return torch.rand(batch_size, 3, height, width) * 50


@pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: "-".join(str(v).lower() for v in kind.values())
)
def test_every_kind_gives_each_pixel_three_logits_and_trains_all_weights(kind):
    model = make(**kind)
    logits = model(images())
    assert logits.shape == (2, 3, 3, 8, 16)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_without_a_loss_calculator_there_are_only_logits():
    model = make(network_depth=1).eval()
    x = images()
    apart = make(network_depth=1)
    apart.planes_apart = True
    apart.eval().load_state_dict(model.state_dict())
    planes = apart(input_tensor=x)
    assert isinstance(planes, list)
    assert torch.equal(torch.stack(planes, dim=2), model(x))
    assert UResNet2D(UResNetSettings(**SMALL), planes_apart=True).planes_apart


def test_a_loss_calculator_gets_planes_and_its_loss_is_returned_with_them():
    model = make(network_depth=1).eval()
    x, labels = images(), torch.randint(0, 3, (2, 3, 8, 16)).float()
    planes, labels_image, loss = model(x, loss_of_planes, labels)
    assert torch.equal(torch.stack(planes, dim=2), model(x))
    assert [plane.dtype for plane in labels_image] == [torch.int64] * 3
    assert torch.equal(torch.stack(labels_image, dim=1), labels.long())
    # Marked by identity_loss, which takes the mean.
    torch.testing.assert_close(loss, functional.cross_entropy(model(x), labels.long()))


def test_a_program_trains_on_the_loss_of_the_calculator():
    torch.manual_seed(0)
    model = make(network_depth=1)
    twin = copy.deepcopy(model)
    optimizer, theirs = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, twin))
    program = training_model(model, Options(backend="capture"), optimizer)
    for _ in range(3):
        x, labels = images(), torch.randint(0, 3, (2, 3, 8, 16), dtype=torch.uint8)
        planes, labels_image, loss = program(x, loss_of_planes, labels)
        expected, _, expected_loss = twin(x, loss_of_planes, labels)
        theirs.zero_grad()
        expected_loss.backward()
        theirs.step()
        torch.testing.assert_close(loss.reshape(()), expected_loss.detach())
        torch.testing.assert_close(list(planes), [plane.detach() for plane in expected])
        assert len(labels_image) == 3
    torch.testing.assert_close(model.last.weight, twin.last.weight)


@pytest.mark.parametrize("labels", [None, torch.zeros(2, 8, 16)], ids=["none", "one-plane"])
def test_a_loss_calculator_needs_a_label_for_each_pixel(labels):
    with pytest.raises(ArgumentError, match=r"labels_image must be \[2, 3, 8, 16\]"):
        make()(images(), loss_of_planes, labels)


def test_features_grow_by_addition_or_by_doubling():
    assert UResNetSettings().filters == (16, 32, 48, 64, 80, 96, 112)
    doubled = UResNetSettings(growth_rate="multiplicative", network_depth=3)
    assert doubled.filters == (16, 32, 64, 128)


def test_normalised_convolutions_have_no_bias():
    names = [name for name, _ in make().named_parameters() if name.endswith("conv.bias")]
    assert names == []
    names = [name for name, _ in make(batch_norm=False).named_parameters()]
    assert "first.conv.bias" in names
    assert not any("norm" in name for name in names)


def test_planes_that_stay_apart_share_all_weights():
    model = make(block_concat=True).eval()
    x = images()
    swapped = model(x[:, [2, 0, 1]])
    torch.testing.assert_close(swapped, model(x)[:, :, [2, 0, 1]])


@pytest.mark.parametrize("apart", [False, True], ids=["merged", "apart"])
def test_planes_see_each_other_only_where_they_are_merged(apart):
    model = make(block_concat=apart).eval()
    x = images()
    changed = x.clone()
    changed[:, 0] += 40
    differs = (model(x) - model(changed)).abs().amax(dim=(0, 1, 3, 4)) > 0
    assert differs.tolist() == ([True, False, False] if apart else [True, True, True])


def test_events_of_a_batch_do_not_mix():
    model = make().eval()
    x = images(3)
    torch.testing.assert_close(model(x)[1:2], model(x[1:2]))


def test_weights_are_channels_last_and_stay_so():
    model = make()
    logits = model.last(model.first(images().reshape(6, 1, 8, 16)))
    assert model.last.weight.is_contiguous(memory_format=torch.channels_last)
    assert logits.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3, 8, 18), "the width of images is 18.*multiple of 4; pad it to 20.*at most 1"),
        ((2, 3, 7, 16), "the height of images is 7.*pad it to 8.*at most 0"),
        ((2, 2, 8, 16), r"\[batch, 3 planes, height, width\], got \[2, 2, 8, 16\]"),
        ((3, 8, 16), r"got \[3, 8, 16\]"),
    ],
    ids=["width", "height", "planes", "no-batch"],
)
def test_images_of_other_sizes_are_refused_with_the_size_that_fits(shape, words):
    with pytest.raises(ArgumentError, match=words):
        make()(torch.zeros(shape))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"connections": "product"}, "one of 'sum', 'concat', 'none'; got 'product'"),
        ({"network_depth": 0}, "network_depth must be an integer of at least 1, got 0"),
        ({"n_initial_filters": 2.5}, "at least 1, got 2.5"),
        ({"blocks_per_layer": True}, "at least 1, got True"),
        ({"filter_size_deepest": 4}, "must be odd.*got 4, use 5"),
        ({"residual": "no"}, "residual must be true or false, got 'no'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(OptionsError, match=words):
        UResNetSettings(**wrong)


def test_the_captured_program_trains_as_plain_pytorch_does():
    plain = Segmentation(make(network_depth=1), "even")
    compiled = copy.deepcopy(plain)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    program = training_model(
        compiled, Options(backend="capture"), torch.optim.Adam(compiled.parameters(), lr=0.01)
    )
    for _ in range(5):
        x, labels = images(), torch.randint(0, 3, (2, 3, 8, 16), dtype=torch.uint8)
        prediction, counts, loss = plain(x, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        got = program(x, labels)
        torch.testing.assert_close(got[2].reshape(()), loss.detach(), rtol=1e-4, atol=1e-6)
        assert torch.equal(got[1].reshape(3, 3), counts)
        assert torch.equal(got[0], prediction)
    for ours, theirs in zip(compiled.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    program.destroy()

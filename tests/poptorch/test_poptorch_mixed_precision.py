import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import poptorch

# What a CPU is slow at does not matter here.
pytestmark = pytest.mark.filterwarnings("ignore:this CPU has no float16")

LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "no bias": (lambda: nn.Linear(4, 3, bias=False), (2, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 3, 3, padding=1, padding_mode="circular"), (2, 4, 6)),
    "conv2d": (lambda: nn.Conv2d(4, 3, 3), (2, 4, 6, 6)),
    "conv3d": (lambda: nn.Conv3d(4, 3, 3), (2, 4, 6, 6, 6)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 3, 3), (2, 4, 6, 6)),
}


class Mse(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        out = self.layer(x)
        return out, poptorch.identity_loss((out.float() ** 2), "mean")


@pytest.fixture(params=["capture", "eager"])
def _backend(request, monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", request.param)


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("dtype", [torch.half, torch.float])
def test_layers_compute_in_the_dtype_of_their_input(make, shape, dtype):
    torch.manual_seed(0)
    layer = make().to(torch.half if dtype is torch.float else torch.float)
    x = torch.randn(shape, dtype=dtype)
    expected = copy.deepcopy(layer).to(dtype)(x)
    out = poptorch.inferenceModel(layer)(x)
    assert out.dtype is dtype
    torch.testing.assert_close(out, expected.detach())


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("dtype", [torch.half, torch.float])
@pytest.mark.parametrize("training", [True, False])
def test_attention_computes_in_the_dtype_of_its_query(dtype, training):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2, batch_first=True).train(training)
    attention.to(torch.half if dtype is torch.float else torch.float)
    x = torch.randn(2, 3, 4, dtype=dtype)
    expected, _ = copy.deepcopy(attention).to(dtype)(x, x, x)
    out, _ = poptorch.inferenceModel(attention)(x, x, x)
    assert out.dtype is dtype
    torch.testing.assert_close(out, expected.detach())


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("dtype", [torch.half, torch.float])
def test_mixed_layers_train_weights_in_their_own_dtype(dtype):
    torch.manual_seed(0)
    own = torch.half if dtype is torch.float else torch.float
    layer = nn.Linear(4, 3).to(own)
    x = torch.randn(8, 4, dtype=dtype)
    model = poptorch.trainingModel(Mse(layer), optimizer=torch.optim.SGD(layer.parameters(), 0.1))
    losses = [model(x)[1].item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[2]
    assert layer.weight.dtype is own


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize(
    "product",
    [torch.matmul, torch.mm, lambda a, b: a @ b, lambda a, b: a.mm(b), lambda a, b: b.t() @ a.t()],
)
def test_products_of_half_and_float_are_float(product):
    class Product(nn.Module):
        def forward(self, a, b):
            return product(a, b)

    a, b = torch.randn(2, 2), torch.randn(2, 2).half()
    out = poptorch.inferenceModel(Product())(a, b)
    torch.testing.assert_close(out, product(a, b.float()))


def test_weights_by_keyword_are_cast_too():
    class ByKeyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x):
            return functional.linear(x, bias=None, weight=self.weight)

    assert poptorch.inferenceModel(ByKeyword())(torch.ones(2, 4).half()).dtype is torch.half


def test_other_dtypes_and_plain_modules_follow_torch():
    layer = nn.Linear(4, 3)
    with pytest.raises(RuntimeError, match="dtype"):
        layer(torch.ones(2, 4).half())
    with pytest.raises(RuntimeError, match="dtype"):
        poptorch.inferenceModel(layer)(torch.ones(2, 4).double())


def test_autocast_in_forward_decides_by_itself():
    class Autocast(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.layer(x)

    model = Autocast()
    x = torch.randn(2, 4).half()
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x).detach())

"""Losses with data-dependent internals, half precision, complex numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _models import MLP, labels, vectors
from _parity import assert_like_eager
from torch import Tensor, nn

from torchkiln.runtime import training_model


class Ctc(nn.Module):
    def __init__(self, reduction: str = "mean"):
        super().__init__()
        self.layer = nn.Linear(4, 5)
        self.loss = nn.CTCLoss(blank=0, reduction=reduction, zero_infinity=True)

    def forward(self, x, targets, lengths, target_lengths):
        scores = self.layer(x).log_softmax(-1).transpose(0, 1)
        return scores, self.loss(scores, targets, lengths, target_lengths)


def ctc_batch() -> tuple[Tensor, ...]:
    targets = torch.tensor([[1, 2, 2], [3, 4, 0]])
    return torch.randn(2, 8, 4), targets, torch.tensor([8, 6]), torch.tensor([3, 2])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ctc_loss(reduction, options):
    assert_like_eager(Ctc(reduction), *ctc_batch(), options=options)


@pytest.fixture
def _fresh_warnings(monkeypatch):
    """Forget which precisions were warned about."""
    from torchkiln.runtime.execute import _precision

    monkeypatch.setattr(_precision, "_warned", set())


def _slow_cpu(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)


@pytest.mark.usefixtures("_fresh_warnings")
@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16")]
)
def test_half_precision_module_trains_and_warns_once(dtype, precision, options, monkeypatch):
    _slow_cpu(monkeypatch)
    module = MLP().to(dtype)
    batch = vectors().to(dtype), labels()
    with pytest.warns(UserWarning, match=f"no {precision} arithmetic"):
        out, loss = training_model(module, options)(*batch)
    assert out.dtype == loss.dtype == module.layers[0].weight.dtype == dtype
    # Once a process: a second program says nothing (a warning would fail this test).
    training_model(MLP().to(dtype), options)(*batch)
    # One rounding to 8 (bfloat16) or 11 bits a step.
    assert_like_eager(
        MLP().to(dtype), vectors().to(dtype), labels(), options=options, tolerance=0.02
    )


@pytest.mark.usefixtures("_fresh_warnings")
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_precision_option_is_autocast(precision, options, monkeypatch):
    _slow_cpu(monkeypatch)
    module = MLP()
    dtype = getattr(torch, precision)
    with torch.autocast("cpu", dtype=dtype):
        expected = module(vectors(), labels())
    program = training_model(module, options.replace(precision=precision))
    with pytest.warns(UserWarning, match=f"no {precision} arithmetic"):
        out, loss = program(vectors(), labels())
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected[0].detach(), rtol=0.02, atol=0.02)
    torch.testing.assert_close(loss, expected[1].detach(), rtol=0.02, atol=0.02)
    assert module.layers[0].weight.dtype == torch.float32


def test_fourier_transform_and_complex_intermediates(options):
    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x):
            spectrum = torch.fft.rfft(x) * self.weight
            out = torch.fft.irfft(spectrum, n=6)
            return spectrum.abs(), F.mse_loss(out, torch.zeros_like(out))

    assert_like_eager(Spectral(), vectors(), options=options)

"""Modules whose tensors no program could hold are refused, with advice."""

import pytest
import torch
from _linear_loss import CAPTURE, LinearLoss, batch, plain

from torchkiln import training_model
from torchkiln.core import CaptureError


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: [t]], ids=["tensor", "list"])
def test_a_trainable_plain_attribute_is_refused(wrap):
    module = LinearLoss(plain)
    extra = torch.ones(1, requires_grad=True)
    module.extra = wrap(extra)
    optimizer = torch.optim.SGD([*module.parameters(), extra], lr=0.1)
    with pytest.raises(CaptureError, match=r"nn\.Parameter"):
        training_model(module, CAPTURE, optimizer)(*batch())


def test_a_sparse_buffer_is_refused_with_advice():
    module = LinearLoss(plain)
    module.register_buffer("adjacency", torch.eye(3).to_sparse())
    with pytest.raises(CaptureError, match="edge_index"):
        training_model(module, CAPTURE)(*batch())


def test_a_child_wrapped_by_torch_compile_is_refused_with_advice(monkeypatch):
    # torch.compile switches this off for the whole process; put it back afterwards.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    compiled = LinearLoss(plain)
    compiled.layer = torch.compile(compiled.layer, backend="eager")
    with pytest.raises(CaptureError, match="pass the plain module"):
        training_model(compiled, CAPTURE)(*batch())

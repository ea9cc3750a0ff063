import warnings

import torch
from torch import nn

from torchkiln import Options, inference_model


def test_a_warning_points_at_the_users_own_line():
    program = inference_model(nn.Linear(3, 2), Options(backend="capture", show_progress=False))
    program(torch.ones(2, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(torch.ones(3, 2).t())
    (warning,) = caught
    assert warning.filename == __file__
    assert "not contiguous" in str(warning.message)

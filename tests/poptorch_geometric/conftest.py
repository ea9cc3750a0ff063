import os
import sys
from pathlib import Path

import pytest
import torch

# The reader of seed documents serves both façades.
sys.path.append(str(Path(__file__).parents[1] / "poptorch"))


@pytest.fixture(autouse=True)
def _captured(_same_start):
    """Programs are captured, not compiled, on one thread: the tensors are tiny."""
    os.environ["TORCHKILN_BACKEND"] = "capture"
    torch.set_num_threads(1)

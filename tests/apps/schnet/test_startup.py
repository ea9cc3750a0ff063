import subprocess
import sys
import time

import pytest
import torch

import torchkiln.apps.schnet
from torchkiln.apps.schnet import _startup
from torchkiln.apps.schnet._optimizer import make_adam
from torchkiln.apps.schnet._startup import StartupClock

# What a start that finds its program in the cache has no use for, and pays seconds for.
HEAVY = ("torch_geometric", "torch._dynamo", "torch._inductor", "sympy", "pandas", "matplotlib")
WARM_PATH = f"""
import sys
import torch
from torchkiln.apps.schnet import _experiment
from torchkiln.apps.schnet._optimizer import make_adam
make_adam([torch.nn.Parameter(torch.zeros(2))], 0.001)
print([name for name in {HEAVY} if name in sys.modules])
"""


def run_python(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    ).stdout.strip()


def test_imports_of_a_training_leave_compilers_and_pyg_alone():
    assert run_python(WARM_PATH) == "[]"


def test_adam_is_torchs_own_and_torch_is_left_as_it_was():
    hidden = torch.optim.Optimizer.add_param_group
    weight = torch.nn.Parameter(torch.zeros(2))
    made, usual = make_adam([weight], 0.01), torch.optim.Adam([weight], lr=0.01)
    assert type(made) is torch.optim.Adam
    assert made.state_dict() == usual.state_dict()
    assert torch.optim.Optimizer.add_param_group is hidden


def test_clock_adds_up_laps_of_one_name_and_the_time_before_it_was_made(monkeypatch):
    times = iter([10.0, 11.0, 13.0, 16.0, 20.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(_startup, "_age_of_process_s", lambda: 10.5)
    clock = StartupClock()
    for part in ("plan", "model", "plan"):
        clock.lap(part)
    assert clock.to_record() == {"interpreter": 0.5, "plan": 4.0, "model": 2.0, "total": 6.5}


def test_process_is_a_little_older_than_its_first_line():
    age = float(
        run_python(
            "from torchkiln.apps.schnet._startup import _age_of_process_s as age; print(age())"
        )
    )
    assert 0 <= age < 60


def test_trained_models_have_a_public_name_that_is_imported_when_used():
    from torchkiln.apps.schnet import _main, _trained

    assert torchkiln.apps.schnet.load_trained is _trained.load_trained
    for name in torchkiln.apps.schnet.__all__:
        place = _main if name == "main" else _trained
        assert getattr(torchkiln.apps.schnet, name) is getattr(place, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        torchkiln.apps.schnet.nonsense  # noqa: B018 - the access is the test
    assert run_python("import sys, torchkiln.apps.schnet; print('torch' in sys.modules)") == (
        "False"
    )

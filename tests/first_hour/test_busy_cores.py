"""A run on cores that others use says so in one line."""

from __future__ import annotations

import torch
from torch import nn

from torchkiln import Options
from torchkiln.core._other_processes import OtherLoad, Reading
from torchkiln.training import Trainer, _core_watch


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        out = self.layer(x)
        return nn.functional.mse_loss(out, torch.zeros_like(out))


def fit(capsys):
    module = Squares()
    trainer = Trainer(
        module,
        torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2),
        optimizer=torch.optim.SGD(module.parameters(), 0.1),
        num_epochs=2,
        options=Options(backend="eager", show_progress=False),
    )
    assert trainer.fit().status == "finished"
    return [line for line in capsys.readouterr().err.splitlines() if "other processes" in line]


def test_other_processes_that_take_the_cores_are_told_in_one_line(monkeypatch, capsys):
    monkeypatch.delenv("TORCHKILN_IGNORE_LOAD")
    monkeypatch.setattr(_core_watch, "_FIRST_LOOK_S", 0.0)
    busy = OtherLoad(cores=2, used=1.9, busiest="python job.py (process 7)", busiest_used=1.8)
    monkeypatch.setattr(Reading, "load_since", lambda self, earlier: busy)
    (line,) = fit(capsys)
    assert "use 1.9 of 2 cores, most of it python job.py (process 7) with 1.8: this run is" in line


def test_a_quiet_machine_is_no_news(monkeypatch, capsys):
    monkeypatch.delenv("TORCHKILN_IGNORE_LOAD")
    monkeypatch.setattr(_core_watch, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(Reading, "load_since", lambda self, earlier: OtherLoad(cores=2, used=0.3))
    assert fit(capsys) == []

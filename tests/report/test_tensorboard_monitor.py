from __future__ import annotations

import sys

import pytest
from _sample_runs import sample_run, step_record

from torchkiln.core import OptionsError
from torchkiln.report import make_monitor


def test_event_files_hold_losses_epochs_and_result(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = sample_run(num_epochs=2, steps_per_epoch=3, num_molecules=10)
    monitor = make_monitor(tmp_path, progress="none", use_tensorboard=True, run_name="first")
    monitor.start(2, 0)
    for number, (_, loss) in enumerate(result.steps):
        monitor.step(step_record(number // 3, number % 3, 3, loss, 100, 0.5))
    for record in result.epochs:
        monitor.epoch(record)
    monitor.result(result)
    monitor.close()

    events = EventAccumulator(str(tmp_path / "tensorboard" / "first")).Reload()
    losses = events.Scalars("train/loss")
    assert [event.step for event in losses] == list(range(6))
    assert [event.value for event in losses] == pytest.approx([loss for _, loss in result.steps])
    errors = events.Scalars("epoch/validation_mae")
    assert [event.value for event in errors] == pytest.approx(
        [record.validation_mae for record in result.epochs]
    )
    assert events.Scalars("final/test_mae")[0].value == pytest.approx(result.test.mae)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(OptionsError, match=r"pip install 'torchkiln\[tensorboard\]'"):
        make_monitor(tmp_path, use_tensorboard=True)

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
from _sample_runs import sample_run, step_record

from torchkiln.core import OptionsError
from torchkiln.report import make_monitor

# The run file is a log in LevelDB's format behind a header of 7 bytes.
HEADER, BLOCK, PREFIX = 7, 32 * 1024, 7


def records(path: Path) -> list:
    """Read what wandb wrote with wandb's own message type."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, found, part = path.read_bytes(), HEADER, [], b""
    while position + PREFIX <= len(content):
        left = BLOCK - position % BLOCK
        if left < PREFIX:  # too little for another entry: filler
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        part += content[position + PREFIX : position + PREFIX + size]
        position += PREFIX + size
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(Record.FromString(part))
            part = b""
    return found


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Nothing of the person's own wandb settings, and no server process left behind."""
    pytest.importorskip("wandb", reason="wandb is an extra")
    monkeypatch.setenv("WANDB_MODE", "offline")
    # Reports of wandb's own errors would go out by threads that live on.
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    yield
    import wandb

    wandb.teardown()


def test_offline_run_holds_losses_epochs_settings_and_result(offline, tmp_path, capfd):
    result = sample_run(num_epochs=2, steps_per_epoch=3, num_molecules=10)
    monitor = make_monitor(
        tmp_path,
        progress="none",
        use_wandb=True,
        project="kiln-tests",
        run_name="first",
        settings=result.settings,
        counted="molecules",
    )
    monitor.start(2, 0)
    for number, (_, loss) in enumerate(result.steps):
        monitor.step(step_record(number // 3, number % 3, 3, loss, 100, 0.5))
        if number % 3 == 2:
            monitor.epoch(result.epochs[number // 3])
    monitor.result(result)
    monitor.close()
    import wandb

    wandb.teardown()  # waits for the process that writes the file

    (path,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    found = records(path)
    rows = [
        {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in r.history.item
        }
        for r in found
        if r.WhichOneof("record_type") == "history"
    ]
    assert [row["train/loss"] for row in rows] == [loss for _, loss in result.steps]
    assert {row["train/molecules_per_s"] for row in rows} == {200.0}
    assert rows[2]["epoch/validation_mae"] == result.epochs[0].validation_mae
    run = next(r.run for r in found if r.WhichOneof("record_type") == "run")
    assert (run.project, run.display_name) == ("kiln-tests", "first")
    assert "learning_rate" in str(run.config)
    summary = str([r.summary for r in found if r.WhichOneof("record_type") == "summary"])
    assert "test/mae" in summary.replace("\\", "")
    assert capfd.readouterr().out == ""


def test_no_key_costs_the_log_and_not_the_training(offline, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "online")
    # Also at a terminal, where wandb would ask for one and wait.
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monitor = make_monitor(tmp_path, progress="none", use_wandb=True)
    with pytest.warns(UserWarning, match=r"WandbMonitor failed .*WANDB_MODE=offline"):
        monitor.start(1, 0)
    monitor.step(step_record(0, 0, 1, 0.5, 10, 1.0))
    assert monitor.monitors == ()


def test_a_missing_package_is_named_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(OptionsError, match=r"pip install 'torchkiln\[wandb\]'"):
        make_monitor(tmp_path, use_wandb=True)


def test_nothing_is_imported_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    make_monitor(tmp_path, progress="lines").close()

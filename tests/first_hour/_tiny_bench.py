"""The benchmark as a person runs it in an empty folder, in a second instead of a minute."""

from __future__ import annotations

import signal

from _tiny_files import QUICK, write_molecules
from _tiny_training import SignalMonitor

from torchkiln.apps.schnet import _experiment
from torchkiln.apps.schnet._main import main
from torchkiln.report import MonitorGroup, _write
from torchkiln.report._results_file import save_result


class TinyBench:
    """Calls `bench.py` with flags; the first call of a run has those that make it quick."""

    def __init__(self, root, monkeypatch, capsys):
        self.flags = [*QUICK, "--root", str(root), "--validation", "false"]
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def start(self, *flags):
        """Begin a run of two epochs; return exit code and standard error."""
        return self(*self.flags, "--num_epochs", "2", *flags)

    def __call__(self, *flags):
        code = main(list(flags))
        self.out, err = self._capsys.readouterr()
        return code, err

    def interrupted(self, *flags, step=5):
        """Begin a run, and press Ctrl-C in one of its steps."""
        make = _experiment.make_monitor

        def with_signal(*arguments, **names):
            group = make(*arguments, **names)
            return MonitorGroup([*group.monitors, SignalMonitor(signal.SIGINT, step)])

        with self._monkeypatch.context() as patch:
            patch.setattr(_experiment, "make_monitor", with_signal)
            return self.start(*flags)


def make_tiny_bench(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # Drawing takes longer than the training of these tests.
    monkeypatch.setattr(_write, "write_report", save_result)
    (tmp_path / "data").mkdir()
    return TinyBench(write_molecules(tmp_path / "data"), monkeypatch, capsys)

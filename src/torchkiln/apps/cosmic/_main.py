"""`torchkiln bench cosmic` and the example: from a command line to an exit code. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchkiln.apps.cosmic._settings import ModeKind
from torchkiln.core import OptionsError, TorchkilnError, run_stoppable

if TYPE_CHECKING:
    from torchkiln.apps.cosmic._devices import MakeDevice

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130


def main(
    args: Sequence[str] | None = None,
    prog: str = "cosmic_tagger.py",
    make_ipu: MakeDevice | None = None,
) -> int:
    """Run what the command line asks for; errors with a remedy are printed without a traceback.

    Args:
        args: The command line; None: that of the process.
        prog: What the program is called.
        make_ipu: What run.compute_mode=IPU stands for; None: a program of Torchkiln.

    Returns:
        0, or 2 for a wrong command line, 1 for a run that failed, 130 after Ctrl-C (and after
        SIGTERM while training, which is saved then), 143 after SIGTERM elsewhere.
    """
    return run_stoppable(lambda: _run(args, prog, make_ipu))


def _run(args: Sequence[str] | None, prog: str, make_ipu: MakeDevice | None) -> int:
    from torchkiln.apps.cosmic._arguments import read_settings

    try:
        settings = read_settings(sys.argv[1:] if args is None else args, prog)
        if "torch" not in sys.modules:
            from torchkiln.core._threads import pin_threads

            pin_threads(settings.run.threads)
        from torchkiln.apps.cosmic import _experiment
        from torchkiln.apps.cosmic._devices import CompiledDevice
        from torchkiln.training._interrupt import Interrupted

        modes = {
            ModeKind.train: _experiment.run_training,
            ModeKind.inference: _experiment.run_inference,
            ModeKind.iotest: _experiment.measure_loading,
            ModeKind.fit: _experiment.foretell_memory,
        }
        try:
            modes[settings.mode.name](settings, make_ipu or CompiledDevice)
        except Interrupted:
            return _INTERRUPTED
        return _OK
    except OptionsError as error:
        return _complain(f"{prog}: {error}\nAll flags: {prog} --help", _USAGE)
    except TorchkilnError as error:
        return _complain(f"{prog}: {error}", _FAILED)


def _complain(text: str, exit_code: int) -> int:
    print(text, file=sys.stderr)  # noqa: T201
    return exit_code

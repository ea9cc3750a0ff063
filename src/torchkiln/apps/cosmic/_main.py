"""`torchkiln bench cosmic` and the example: from a command line to an exit code. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchkiln.apps.cosmic._settings import ModeKind, Settings
from torchkiln.training import ExitCode
from torchkiln.training._exit_codes import run_command

if TYPE_CHECKING:
    from torchkiln.apps.cosmic._devices import MakeDevice


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
    remedy = "use a smaller run.minibatch_size, or run.recompute=auto"
    return run_command(lambda: _run(args, prog, make_ipu), prog, remedy)


def _run(args: Sequence[str] | None, prog: str, make_ipu: MakeDevice | None) -> int:
    from torchkiln.apps._command_line import speaking
    from torchkiln.apps._invocation import invocation
    from torchkiln.apps.cosmic._arguments import read_settings

    settings = read_settings(sys.argv[1:] if args is None else args, prog)
    with speaking(quiet=settings.run.quiet, log_level=settings.run.log_level):
        return _run_mode(settings, make_ipu, invocation(prog, args))


def _run_mode(settings: Settings, make_ipu: MakeDevice | None, command: str) -> int:
    from torchkiln.apps._command_line import fix_threads

    fix_threads(settings.run.threads)
    from torchkiln.apps.cosmic import _experiment
    from torchkiln.apps.cosmic._devices import CompiledDevice
    from torchkiln.training._interrupt import Interrupted

    modes = {
        ModeKind.inference: _experiment.run_inference,
        ModeKind.iotest: _experiment.measure_loading,
        ModeKind.fit: _experiment.foretell_memory,
    }
    try:
        if settings.mode.name is ModeKind.train:
            _experiment.run_training(settings, make_ipu or CompiledDevice, command)
            return ExitCode.OK
        outcome = modes[settings.mode.name](settings, make_ipu or CompiledDevice)
    except Interrupted:
        return ExitCode.INTERRUPTED
    does_not_fit = settings.mode.name is ModeKind.fit and not outcome
    return ExitCode.FAILED if does_not_fit else ExitCode.OK

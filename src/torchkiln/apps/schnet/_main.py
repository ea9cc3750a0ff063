"""`bench.py` and `torchkiln bench`: from a command line to an exit code. No torch up here."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torchkiln.training import ExitCode, exit_code
from torchkiln.training._exit_codes import run_command


def main(args: Sequence[str] | None = None, prog: str = "bench.py") -> int:
    """Run the benchmark; errors that name a remedy are printed without a traceback.

    Returns:
        0, or 2 for a wrong command line, 1 for a run that failed, 130 after Ctrl-C (and after
        SIGTERM while training, which is saved then), 143 after SIGTERM elsewhere.
    """
    remedy = "use a smaller batch_size or fewer device_iterations"
    return run_command(lambda: _run(args, prog), prog, remedy)


def _run(args: Sequence[str] | None, prog: str) -> int:
    from torchkiln.apps.schnet._startup import StartupClock

    clock = StartupClock()
    from torchkiln.apps._command_line import fix_threads, speaking
    from torchkiln.apps._invocation import invocation
    from torchkiln.apps.schnet._arguments import read_settings
    from torchkiln.apps.schnet._requirements import check_device_of, check_packages

    settings = read_settings(sys.argv[1:] if args is None else args, prog)
    if settings.resume:
        from torchkiln.apps.schnet._complete import show_if_complete

        if show_if_complete(settings):
            return ExitCode.OK
    check_packages(settings)  # at once, without waiting for torch
    clock.lap("settings")
    with speaking(quiet=settings.quiet, log_level=settings.log_level):
        fix_threads(settings.threads)
        from torchkiln.apps.schnet._experiment import measure_loading, run_experiment

        clock.lap("imports")
        check_device_of(settings)
        if settings.time_dataloader:
            measure_loading(settings)
            return ExitCode.OK
        return exit_code(run_experiment(settings, clock, invocation(prog, args)))

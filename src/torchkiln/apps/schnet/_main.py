"""`bench.py` and `torchkiln bench`: from a command line to an exit code. No torch up here."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torchkiln.apps.schnet._settings import Settings
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
    from torchkiln.apps._launch import Attempt, is_one_of_several, join, launch_command, spoken_for
    from torchkiln.apps.schnet._requirements import check_packages

    words = sys.argv[1:] if args is None else args
    attempt = Attempt.at(lambda: _read(words, prog))
    read = attempt.value or Settings()
    if not is_one_of_several():
        if _is_shown_again(read):
            return ExitCode.OK
        check_packages(read)  # at once, without waiting for torch
    clock.lap("settings")
    with speaking(quiet=read.quiet, log_level=read.log_level):
        fix_threads(read.threads)
        from torchkiln.apps.schnet._experiment import measure_loading, run_experiment

        clock.lap("imports")
        ranks = join()
        with spoken_for(ranks):
            # Those of rank 0 count: it may be the only one that sees the checkpoint.
            settings = ranks.first_does("read the settings", attempt.get)
            ranks = ranks.waiting(settings.bench.collective_timeout_s)
            if ranks.size > 1 and ranks.first_does("look", lambda: _is_shown_again(settings)):
                return ExitCode.OK
            ranks.all_do("look at the device", lambda: _check(settings, ranks.size))
            if settings.time_dataloader:
                measure_loading(settings, ranks)
                return ExitCode.OK
            command = launch_command(invocation(prog, args))
            return exit_code(run_experiment(settings, clock, command, ranks))


def _read(words: Sequence[str], prog: str) -> Settings:
    from torchkiln.apps.schnet._arguments import read_settings
    from torchkiln.training._restarts import goes_on

    settings = read_settings(words, prog)
    # torchrun repeats the command after a failure; the run has a checkpoint by then.
    if settings.checkpoint and goes_on(settings.checkpoint_dir / settings.model_name):
        settings = read_settings([*words, "--resume", "true"], prog)
    return settings


def _is_shown_again(settings: Settings) -> bool:
    """Show the result of a run that is complete, if that is what was asked for."""
    if not settings.resume:
        return False
    from torchkiln.apps.schnet._complete import show_if_complete

    return show_if_complete(settings)


def _check(settings: Settings, num_processes: int) -> None:
    from torchkiln.apps.schnet._requirements import (
        check_device_of,
        check_packages,
        check_several,
    )

    check_packages(settings)
    check_several(num_processes, is_eager=settings.bench.is_plain_eager)
    check_device_of(settings)

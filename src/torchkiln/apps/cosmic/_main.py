"""`torchkiln bench cosmic` and the example: from a command line to an exit code. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchkiln.apps.cosmic._settings import ModeKind, Settings
from torchkiln.training import ExitCode
from torchkiln.training._exit_codes import run_command

if TYPE_CHECKING:
    from torchkiln.apps._launch import Attempt
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
    remedy = (
        "use a smaller run.minibatch_size, run.precision=bfloat16, run.recompute=auto, or two "
        "stages in two processes (run.pipeline); mode=fit says how much each of them needs, and "
        "mode=fit mode.stages=2 where to cut"
    )
    return run_command(lambda: _run(args, prog, make_ipu), prog, remedy)


def _run(args: Sequence[str] | None, prog: str, make_ipu: MakeDevice | None) -> int:
    from torchkiln.apps._command_line import speaking
    from torchkiln.apps._invocation import invocation
    from torchkiln.apps._launch import Attempt, launch_command

    words = sys.argv[1:] if args is None else args
    attempt = Attempt.at(lambda: _read(words, prog))
    run = (attempt.value or Settings()).run
    with speaking(quiet=run.quiet, log_level=run.log_level):
        return _run_mode(attempt, make_ipu, launch_command(invocation(prog, args)))


def _read(words: Sequence[str], prog: str) -> Settings:
    from torchkiln.apps.cosmic._arguments import read_settings
    from torchkiln.apps.cosmic._resumed_arguments import FOLDER
    from torchkiln.training._restarts import goes_on

    settings = read_settings(words, prog)
    # torchrun repeats the command after a failure; the run has a checkpoint by then.
    is_training = settings.mode.name is ModeKind.train and settings.mode.checkpoint_epochs
    if is_training and goes_on(settings.run.directory / FOLDER):
        settings = read_settings([*words, "mode.resume=true"], prog)
    return settings


def _run_mode(attempt: Attempt[Settings], make_ipu: MakeDevice | None, command: str) -> int:
    from torchkiln.apps._command_line import fix_threads
    from torchkiln.apps._launch import join, spoken_for

    fix_threads((attempt.value or Settings()).run.threads)
    from torchkiln.apps.cosmic import _experiment
    from torchkiln.apps.cosmic._devices import CompiledDevice
    from torchkiln.apps.cosmic._foretelling import foretell_memory
    from torchkiln.training._interrupt import Interrupted

    modes = {
        ModeKind.inference: _experiment.run_inference,
        ModeKind.iotest: _experiment.measure_loading,
        ModeKind.fit: foretell_memory,
    }
    ranks = join()
    with spoken_for(ranks):
        # Those of rank 0 count: it may be the only one that sees the checkpoint.
        settings = ranks.first_does("read the settings", attempt.get)
        ranks = ranks.waiting(settings.run.collective_timeout_s)
        ranks = ranks.divided(max(len(settings.run.stages), 1))
        try:
            if settings.mode.name is ModeKind.train:
                _experiment.run_training(settings, make_ipu or CompiledDevice, command, ranks)
                return ExitCode.OK
            outcome = modes[settings.mode.name](settings, make_ipu or CompiledDevice, ranks)
        except Interrupted:
            ranks.leave()
            return ExitCode.INTERRUPTED
    does_not_fit = settings.mode.name is ModeKind.fit and not outcome
    return ExitCode.FAILED if does_not_fit else ExitCode.OK

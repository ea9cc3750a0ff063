"""`bench.py` and `torchkiln bench`: from a command line to an exit code. No torch up here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from torchkiln.core import OptionsError, TorchkilnError, run_stoppable

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130
_EXIT_CODES = {"finished": _OK, "failed": _FAILED, "interrupted": _INTERRUPTED}


def main(args: Sequence[str] | None = None, prog: str = "bench.py") -> int:
    """Run the benchmark; errors that name a remedy are printed without a traceback.

    Returns:
        0, or 2 for a wrong command line, 1 for a run that failed, 130 after Ctrl-C (and after
        SIGTERM while training, which is saved then), 143 after SIGTERM elsewhere.
    """
    return run_stoppable(lambda: _run(args, prog))


def _run(args: Sequence[str] | None, prog: str) -> int:
    from torchkiln.apps.schnet._startup import StartupClock

    clock = StartupClock()
    from torchkiln.apps.schnet._arguments import read_settings

    try:
        settings = read_settings(sys.argv[1:] if args is None else args, prog)
        clock.lap("settings")
        _fix_threads(settings.threads)
        from torchkiln.apps.schnet._experiment import measure_loading, run_experiment

        clock.lap("imports")
        if settings.time_dataloader:
            measure_loading(settings)
            return _OK
        result = run_experiment(settings, clock)
        sys.stdout.flush()  # here, where a closed pipe is understood
        return _EXIT_CODES[result.status]
    except OptionsError as error:
        return _complain(f"{prog}: {error}\nAll flags: {prog} --help", _USAGE)
    except TorchkilnError as error:
        return _complain(f"{prog}: {error}", _FAILED)
    except MemoryError as error:
        text = f"not enough memory ({error}); use a smaller batch_size or fewer device_iterations"
        return _complain(f"{prog}: {text}", _FAILED)
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED


def _fix_threads(num_threads: int | None) -> None:
    """Pin the threads of a fresh process; one that runs torch already is only told how many."""
    if "torch" not in sys.modules:
        from torchkiln.core._threads import pin_threads

        pin_threads(num_threads)
    elif num_threads is not None:
        import torch

        torch.set_num_threads(num_threads)


def _complain(text: str, exit_code: int) -> int:
    print(text, file=sys.stderr)  # noqa: T201
    return exit_code

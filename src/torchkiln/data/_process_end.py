"""How a process ended, in words."""

from __future__ import annotations

import signal

_REMEDIES = {
    signal.SIGKILL: "if you did not do that, the system ran out of memory: use fewer workers, "
    "smaller batches or a smaller dataset in memory",
    signal.SIGBUS: "shared memory is full: enlarge /dev/shm (docker run --shm-size), use fewer "
    "workers or smaller batches",
}
_ANY_SIGNAL = (
    "if you did not do that, code of the dataset crashed: load one element in this process"
)


def describe_end(exit_code: int | None) -> tuple[str, str]:
    """Return how a process ended that should not have, and what to do about it."""
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}", "see its output above"
    try:
        number = signal.Signals(-exit_code)
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-exit_code}", _ANY_SIGNAL
    return f"was killed by signal {-exit_code} ({number.name})", _REMEDIES.get(number, _ANY_SIGNAL)

"""How long each module took, for whoever divides a model among processes."""

from __future__ import annotations

from pathlib import Path

from torchkiln.core import OptionsError
from torchkiln.profiling.graph._file import load_profile


def module_times(folder: Path) -> dict[str, float]:
    """Return the time of each module in a profile, in microseconds of forward and backward.

    Raises:
        OptionsError: Nothing was measured.
    """
    times: dict[str, float] = {}
    for row in load_profile(folder).rows:
        if row.phase != "update" and row.us is not None:
            times[row.module] = times.get(row.module, 0.0) + row.us
    if not any(times.values()):
        raise OptionsError(
            f"the profile in {folder} has no times: it was planned and not measured; make one "
            "with profile_dir, or leave it out"
        )
    return times

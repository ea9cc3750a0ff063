"""`torchkiln profile`: looking at what was recorded; each kind of profile has a file of its own."""

from __future__ import annotations

from pathlib import Path

from torchkiln.commands._graph_profile import show_graph_profile
from torchkiln.commands._profile_system import merge_system_profile, show_system_profile
from torchkiln.core import OptionsError
from torchkiln.profiling.graph._file import is_graph_profile
from torchkiln.profiling.system._summary import has_recording
from torchkiln.profiling.views._totals import View


def show_profile(path: Path | None, by: View | None = None, top: int = 15) -> None:
    """Print what a profile says; which kind it is follows from what is there.

    Args:
        path: A folder or a file.
        by: Of a graph profile, the one table to show; None: a summary.
        top: Rows of its tables.

    Raises:
        OptionsError: There is none.
    """
    if path is None:
        raise OptionsError("say which profile: torchkiln profile show PATH, a folder or a file")
    if not path.exists():
        raise OptionsError(f"there is no {path}; pass the folder or a file of a profile")
    # The folder of a graph profile holds a trace, too.
    if is_graph_profile(path):
        show_graph_profile(path, by, top)
    elif has_recording(path):
        show_system_profile(path)
    else:
        raise OptionsError(
            f"there is no profile in {path}; pass the folder that --profile_dir, PVTI_OPTIONS or "
            "torchkiln.profiling.record named, or a file in it"
        )


def merge_profile(directory: Path | None) -> None:
    """Put the files of all processes of a system profile together.

    Raises:
        OptionsError: No folder was named.
    """
    if directory is None:
        raise OptionsError("say which folder: torchkiln profile merge DIRECTORY")
    merge_system_profile(directory)

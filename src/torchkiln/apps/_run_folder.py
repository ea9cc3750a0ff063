"""The folder of a run's report, which belongs to one run: nobody writes over another's results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from torchkiln.core import OptionsError, StoreError
from torchkiln.core._claims import Claimed, claimed_folder, made_folder
from torchkiln.report._results_file import RESULTS_NAME


@contextlib.contextmanager
def run_folder(
    directory: Path,
    *,
    name_flag: str,
    folder_flag: str,
    is_same_run: Callable[[], bool],
    is_new: bool = False,
) -> Iterator[None]:
    """Claim the folder of a run; if nothing is written into it, it does not stay behind.

    Args:
        directory: The folder.
        name_flag: What the run is named by: "--run_name".
        folder_flag: What says where all runs are: "--output_dir".
        is_same_run: Whether results that lie there already are those of an earlier part of this
            run.
        is_new: Whether the folder must not exist yet.

    Raises:
        StoreError: Another run is going on there, or has left its results there.
        OptionsError: The folder cannot be made.
        FileExistsError: There is one, and `is_new` is on.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(claimed_folder(directory, is_new=is_new, is_lock_kept=False))
        except Claimed:
            raise StoreError(
                f"another run named {directory.name!r} is writing to {directory} now; wait for it, "
                f"or choose another {name_flag}"
            ) from None
        except OSError as error:
            if is_new and isinstance(error, FileExistsError):
                raise
            flags = f"{name_flag} or {folder_flag}"
            raise _cannot_be_made(directory, "report", flags, error) from error
        if (directory / RESULTS_NAME).exists() and not is_same_run():
            raise StoreError(
                f"{directory} holds the results of another run; choose another {name_flag}, or "
                "remove that folder"
            )
        yield


@contextlib.contextmanager
def output_folder(directory: Path, what: str, flag: str) -> Iterator[None]:
    """Make a folder now: after hours of training is too late to find out that it cannot be.

    Raises:
        OptionsError: It cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(made_folder(directory))
        except OSError as error:
            raise _cannot_be_made(directory, what, flag, error) from error
        yield


def _cannot_be_made(directory: Path, what: str, flag: str, error: OSError) -> OptionsError:
    return OptionsError(
        f"the {what} cannot be written to {directory}: {error}; choose another {flag}"
    )

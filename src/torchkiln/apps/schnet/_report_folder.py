"""Which folder the report of a run goes to, and whether results that lie there are its own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from torchkiln.apps._run_folder import output_folder, run_folder
from torchkiln.apps.schnet._resumed_settings import read_saved
from torchkiln.apps.schnet._settings import Settings
from torchkiln.core import StoreError
from torchkiln.report import load_result


@contextlib.contextmanager
def report_folder(settings: Settings, name: str) -> Iterator[Path]:
    """Claim the folder of the report, and make that of the profile if one was asked for.

    Args:
        settings: Of the run. Without a name of the user's own, the folder is a new one: runs that
            start within one second would write over each other.
        name: Of the run.

    Raises:
        StoreError: Another run is going on there, or has left its results there.
        OptionsError: A folder cannot be made.
    """
    with contextlib.ExitStack() as stack:
        if settings.run_name is not None:
            directory = settings.output_dir / name
            stack.enter_context(_claim(settings, directory))
        else:
            directory = _claim_new(stack, settings, name)
        if settings.bench.profile_dir is not None:
            stack.enter_context(
                output_folder(settings.bench.profile_dir, "profile", "--profile_dir")
            )
        yield directory


def _claim_new(stack: contextlib.ExitStack, settings: Settings, name: str) -> Path:
    for number in itertools.count(1):
        directory = settings.output_dir / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            stack.enter_context(_claim(settings, directory, is_new=True))
            return directory
    raise AssertionError  # there is always a next number


def _claim(
    settings: Settings, directory: Path, *, is_new: bool = False
) -> contextlib.AbstractContextManager[None]:
    return run_folder(
        directory,
        name_flag="--run_name",
        folder_flag="--output_dir",
        is_same_run=lambda: _is_same_run(settings, directory),
        is_new=is_new,
    )


def _is_same_run(settings: Settings, directory: Path) -> bool:
    """Whether the results in a folder are those of the checkpoint that is continued."""
    saved = read_saved(settings) if settings.resume else None
    if saved is None or saved.settings.get("run_name") != directory.name:
        return False
    try:
        before = load_result(directory).settings
    except StoreError:
        return True  # damaged; the checkpoint knows the folder for its own
    return before.get("model_name") == settings.model_name

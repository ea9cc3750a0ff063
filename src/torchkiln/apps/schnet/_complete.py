"""A run that is continued although all its epochs are done: its result is shown again."""

from __future__ import annotations

from torchkiln.apps.schnet._resumed_settings import SavedRun, read_saved
from torchkiln.apps.schnet._settings import Settings
from torchkiln.core import StoreError
from torchkiln.core._progress import say
from torchkiln.report import RunResult, load_result, print_record, print_summary
from torchkiln.report._write import PAGE_NAME


def show_if_complete(settings: Settings) -> bool:
    """Show the result of the run if there is nothing left to train, and say so.

    Returns:
        Whether it was shown. A result that is missing, or of an earlier state of the run, is not:
        it has to be made again.
    """
    saved = read_saved(settings)
    if saved is None or saved.epochs_done < settings.bench.num_epochs:
        return False
    result = _its_result(settings, saved)
    if result is None:
        return False
    done = saved.epochs_done
    say(
        f"{saved.directory} is complete: {done} epoch{'s' * (done > 1)} done, --num_epochs "
        f"{settings.bench.num_epochs} asks for no more; --num_epochs {done + 1} would go on"
    )
    show = print_record if settings.json else print_summary
    show(result)
    if settings.run_name is not None:
        say(f"report: {settings.output_dir / settings.run_name / PAGE_NAME}")
    return True


def _its_result(settings: Settings, saved: SavedRun) -> RunResult | None:
    """Return what the run left in the folder of its report, if that is its last state."""
    if settings.run_name is None:  # a checkpoint of before reports were named in it
        return None
    try:
        result = load_result(settings.output_dir / settings.run_name)
    except StoreError:
        return None
    is_its_own = result.settings.get("model_name") == settings.model_name
    is_whole = result.status == "finished" or saved.is_between
    return result if is_its_own and is_whole and len(result.epochs) >= saved.epochs_done else None

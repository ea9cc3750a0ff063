"""Recordings from their beginning to the merged file."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchkiln.core import StoreError, WriteError, add_tracer, is_traced, warn_user
from torchkiln.core._trace import HANDED_OVER
from torchkiln.profiling.system._merge import MERGED, merge_run, set_aside_older
from torchkiln.profiling.system._options import RecordOptions, to_channels
from torchkiln.profiling.system._recorder import Recorder
from torchkiln.profiling.system._session import Session

# After the recorder's own end.
_VERY_LAST = -101


@contextlib.contextmanager
def record(
    directory: str | os.PathLike[str],
    channels: Iterable[str] | None = None,
    duration_s: float | None = None,
) -> Iterator[Path]:
    """Record what happens in the block, in all threads, and in processes that are started in it.

    Processes that load data and were started before are not heard. Each process writes a file of
    its own; they are put together at the end. `ui.perfetto.dev` opens the result, and `torchkiln
    profile show` sums it up.

    Args:
        directory: Gets the files; made if it is missing.
        channels: Record only these; None: all.
        duration_s: Stop after so many seconds; None: at the end of the block.

    Yields:
        The merged file, which is there after the block.

    Raises:
        OptionsError: An argument is none.
        WriteError: Nothing can be written to the folder.
    """
    options = RecordOptions(Path(directory), to_channels(channels), duration_s)
    session = Session.new(options)
    # The environment is looked at before it says that this recording is going on.
    is_traced()
    try:
        recorder = start(session)
    except OSError as error:
        raise WriteError(
            f"the system profile cannot be written to {session.directory} "
            f"({error.strerror or error}); choose another directory"
        ) from error
    before = os.environ.get(HANDED_OVER)
    os.environ[HANDED_OVER] = session.to_text()
    try:
        yield session.directory / MERGED
    finally:
        if before is None:
            os.environ.pop(HANDED_OVER, None)
        else:
            os.environ[HANDED_OVER] = before
        finish(recorder)


def start(session: Session) -> Recorder:
    """Let a recorder listen.

    Raises:
        OSError: The file of the main process cannot be made.
    """
    recorder = Recorder(session)
    if session.is_main:
        set_aside_older(session.directory, session.run)
    recorder.when_over = add_tracer(recorder)
    return recorder


def end_with_process(recorder: Recorder) -> None:
    """Let `finish` be called when the processes that this one started have ended, and it ends."""
    multiprocessing.util.Finalize(None, finish, args=(recorder,), exitpriority=_VERY_LAST)


def finish(recorder: Recorder) -> None:
    """End a recording in its main process, and merge what all processes wrote."""
    recorder.stop()
    session = recorder.session
    if not session.is_main:
        return  # a forked child that leaves the block of its parent
    try:
        merge_run(session.directory, session.run, has_ranks=session.rank is not None)
    except (OSError, StoreError) as error:
        warn_user(
            f"the files of the system profile in {session.directory} are not merged ({error}); "
            f"when there is room, do it with `torchkiln profile merge {session.directory}`"
        )

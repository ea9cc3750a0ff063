"""Recording because the environment says so: `PVTI_OPTIONS`, or the process that started this one.

`core/_extensions.py` names this file, and `core/_trace.py` calls `begin` when the first mark of a
process is made.
"""

from __future__ import annotations

import os

from torchkiln.core import warn_user
from torchkiln.core._trace import HANDED_OVER
from torchkiln.profiling.system._options import VARIABLE, RecordOptions, read_options
from torchkiln.profiling.system._recording import end_with_process, start
from torchkiln.profiling.system._session import Session


def begin() -> None:
    """Join the recording of the process that started this one, or begin one, if asked for."""
    handed = os.environ.get(HANDED_OVER)
    joined = None if handed is None else Session.from_text(handed)
    if joined is not None and not joined.is_over():
        start(joined)
        return
    options = _asked_for()
    if options is None:
        return
    session = Session.new(options)
    try:
        recorder = start(session)
    except OSError as error:
        warn_user(
            f"{VARIABLE} asks for a system profile in {session.directory}, which cannot be written "
            f"({error.strerror or error}); the run goes on without; name another directory in it"
        )
        return
    os.environ[HANDED_OVER] = session.to_text()
    end_with_process(recorder)


def _asked_for() -> RecordOptions | None:
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return None
    options, problems = read_options(text)
    if problems:
        goes_to = "nothing is recorded"
        if options is not None:
            goes_to = f"the system profile goes to {options.directory.absolute()}"
        warn_user(
            f"{VARIABLE} is not what it should be: {'; '.join(problems)}; {goes_to}; write "
            f'{VARIABLE}=\'{{"enable":"true","directory":"system_profile"}}\''
        )
    return options

"""Progress bars are drawn where a person watches, and nowhere else.

A bar redraws itself with carriage returns. In a log file or a pipe each of them becomes a line.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm.std import tqdm

# Of the whole process: bars are drawn by threads, too.
_quiet = False


def is_watched(stream: TextIO | None = None) -> bool:
    """Return whether a person sees progress bars on `stream`, which is standard error by default.

    True for a terminal and for a notebook; False for files, pipes and within `quietly`.
    """
    if _quiet:
        return False
    stream = sys.stderr if stream is None else stream
    if stream is None:  # a process without a console
        return False
    return is_terminal(stream) or _is_notebook()


def is_quiet() -> bool:
    """Return whether nothing but results, warnings and errors shall be told."""
    return _quiet


@contextlib.contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """Draw no bars and tell nothing by the way for as long as this lasts, if `quiet` is True."""
    global _quiet
    before = _quiet
    _quiet = quiet or before
    try:
        yield
    finally:
        _quiet = before


def say(text: str) -> None:
    """Tell a person what is going on; standard output is for results.

    Bars that are being drawn move down.
    """
    if _quiet:
        return
    from tqdm.std import tqdm

    with contextlib.suppress(BrokenPipeError):  # the reader has seen enough; results still count
        tqdm.write(text, file=sys.stderr)
        sys.stderr.flush()


def progress_bar(
    iterable: Iterable[Any] | None = None, *, show: bool = True, **settings: Any
) -> tqdm[Any]:
    """Return a bar of tqdm on standard error, which draws nothing where nobody watches.

    Args:
        iterable: What to go through; None for a bar that is moved by hand.
        show: False draws nothing anywhere.
        **settings: Of tqdm.
    """
    from tqdm.auto import tqdm

    # False asks tqdm for the bar; its own None would look at the terminal only, not at notebooks.
    return tqdm(iterable, disable=not (show and is_watched()), **settings)


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can redraw a line."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which draws bars as widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")

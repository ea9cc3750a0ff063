"""Native helpers of programs that need no other build."""

from __future__ import annotations

from torchkiln.ops._prepare import missing_natives, prepare_natives


def prepare_helpers(names: set[str], *, show_progress: bool) -> bool:
    """Load native helpers; those that are missing are built first, under a bar of their own.

    For programs from a cache or a file, and for plain eager PyTorch. Returns whether something had
    to be built.

    Args:
        names: Of helpers in `torchkiln.ops`.
        show_progress: Whether to draw the bar, if somebody watches.
    """
    if missing_natives(names):
        from torchkiln.runtime.compile._progress import build_helpers

        build_helpers(names, show=show_progress)
        return True
    prepare_natives(names)
    return False

"""The errors under the name of the original's native module; nothing native lives here."""

from poptorch._errors import Error, RecoverableError, UnrecoverableError

__all__ = ["Error", "RecoverableError", "UnrecoverableError"]

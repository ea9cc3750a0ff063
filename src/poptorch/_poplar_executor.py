"""The module of the original that programs import `PoplarExecutor` from, although it is private."""

from poptorch._executor import PoplarExecutor as PoplarExecutor

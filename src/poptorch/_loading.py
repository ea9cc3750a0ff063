"""`poptorch.load`: a wrapped model from the file that `save` wrote."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from poptorch._executor import PoplarExecutor
from poptorch._export import opened, read_description, read_model, read_program
from poptorch._option_store import require
from poptorch._version import __version__
from poptorch.enums import ConnectionType
from poptorch.options import Options


def load(
    filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], Any] | None = None
) -> PoplarExecutor:
    """Return the model of a file that `save` or `compileAndExport` wrote, ready to run.

    The file is executed (native code and pickle): load only files that you trust.

    Args:
        filename: The file.
        edit_opts_fn: May change the options first; what the program was compiled for stays.

    Raises:
        AssertionError: if the file is of another version, or holds no model.
        Error: if it is no such file.
    """
    with opened(filename) as archive:
        description = read_description(archive, filename)
        require(
            description["version"] == __version__,
            f"{filename} was written by another version of poptorch",
            description["version"],
            __version__,
        )
        require(
            description["has_model"],
            f"{filename} holds no model",
            "export_model=False",
            "a file saved with export_model=True, or loadExecutable on a wrapped model",
        )
        parts = read_model(archive, filename)
        options = parts["options"].clone()
        _go_online(options)
        if edit_opts_fn is not None:
            edit_opts_fn(options)
        executor = PoplarExecutor(
            parts["model"], options, parts["training"], optimizer=parts["optimizer"]
        )
        program = read_program(
            archive,
            description,
            executor._program.module,
            executor._link.optimizer,
            executor._options._to_torchkiln(),
        )
    executor._adopt_program(program)
    return executor


def _go_online(options: Options) -> None:
    """Remove the marks of a compile-only target: whoever loads a program wants to run it."""
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)

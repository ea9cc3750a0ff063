"""Files of compiled models.

A file is a zip archive: a JSON description, the program as Torchkiln exports it, and, if asked for,
the pickled module, options and optimiser. Loading executes what is in it (native code, pickle), so
load only files that you trust.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from poptorch._errors import Error, translated
from poptorch._logging import logger
from poptorch._version import __version__
from torchkiln import core, runtime
from torchkiln.core import ScratchDirectory, atomic_path, check_trusted, is_shared, parse_json
from torchkiln.data import find_unpicklable

_DESCRIPTION, _PROGRAM, _MODEL = "poptorch.json", "program.torchkiln", "model.pt"


def save_program(
    program: runtime.Program,
    filename: str | os.PathLike[str],
    *,
    parts: dict[str, Any] | None,
    save_rng_state: bool,
) -> None:
    """Write a compiled program to `filename` in one step, with `parts` to make its model again."""
    path = Path(filename)
    if path.is_dir():
        logger.warning("%s is a directory; saving to model.poptorch in it", path)
        path = path / "model.poptorch"
    description = {
        "version": __version__,
        "has_model": parts is not None,
        "has_rng_state": save_rng_state,
    }
    with translated(), _scratch() as directory:
        exported = directory / _PROGRAM
        program.export(exported)
        own = not is_shared(path)
        with atomic_path(path, own=own) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            archive.writestr(_DESCRIPTION, json.dumps(description))
            archive.write(exported, _PROGRAM)
            if parts is not None:
                archive.writestr(_MODEL, _to_bytes(parts))


def load_executable(
    filename: str | os.PathLike[str],
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    options: core.Options,
) -> runtime.Program:
    """Return the program of a file for a module, which keeps its weights."""
    with opened(filename) as archive:
        description = read_description(archive, filename)
        weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        try:
            return read_program(archive, description, module, optimizer, options)
        finally:
            module.load_state_dict(weights)


def read_program(
    archive: zipfile.ZipFile,
    description: dict[str, Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    options: core.Options,
) -> runtime.Program:
    """Return the program of an opened file, its weights in `module`."""
    random_state = torch.get_rng_state()
    with translated(), _scratch() as directory:
        program = runtime.load(_extract_program(archive, directory), module, optimizer, options)
    if not description["has_rng_state"]:
        torch.set_rng_state(random_state)
    return program


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a temporary folder; what a killed process leaves of it goes with the next start."""
    folder = ScratchDirectory()
    try:
        yield folder.path
    finally:
        folder.remove()


@contextlib.contextmanager
def opened(filename: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """Yield a file of `save`, every part of which has its checksum."""
    with contextlib.ExitStack() as stack:
        try:
            with translated():
                check_trusted(Path(filename))
            archive = stack.enter_context(zipfile.ZipFile(filename))
            damaged = archive.testzip()
        except (FileNotFoundError, Error):
            raise
        except Exception as error:  # zipfile has a dozen kinds for bytes that are no archive
            raise _no_such_file(filename, error) from error
        if damaged is not None:
            raise _no_such_file(filename, f"{damaged} in it does not have its checksum")
        yield archive


def read_description(archive: zipfile.ZipFile, filename: Any) -> dict[str, Any]:
    """Return the version of the file, and what is in it."""
    try:
        description = parse_json(archive.read(_DESCRIPTION), _DESCRIPTION)
    except Exception as error:  # as above; also for an archive without it
        raise _no_such_file(filename, error) from error
    facts = ("version", "has_model", "has_rng_state")
    if not isinstance(description, dict) or any(fact not in description for fact in facts):
        raise _no_such_file(filename, f"{_DESCRIPTION} does not say {', '.join(facts)}")
    return description


def read_model(archive: zipfile.ZipFile, filename: Any) -> dict[str, Any]:
    """Return the model, options, optimiser and kind that were pickled."""
    try:
        parts = torch.load(io.BytesIO(archive.read(_MODEL)), weights_only=False)
        missing = {"model", "options", "optimizer", "training"} - set(parts)
    except Exception as error:  # whatever a pickle raises, which may be classes that are not here
        raise Error(
            f"the model in {filename} cannot be read ({type(error).__name__}: {error}); import the "
            "modules that define its classes first, or save it again"
        ) from error
    if missing:
        raise _no_such_file(filename, f"{_MODEL} has no {', '.join(sorted(missing))}")
    return parts


def _extract_program(archive: zipfile.ZipFile, directory: Path) -> str:
    try:
        path = archive.extract(_PROGRAM, directory)
        # The folder is private; with a loose umask the file alone would not be trusted.
        os.chmod(path, 0o600)
        return path
    except Exception as error:  # as above
        raise _no_such_file(archive.filename, error) from error


def _no_such_file(filename: Any, reason: object) -> Error:
    return Error(
        f"{filename} is not a file of PoplarExecutor.save, or it is damaged: {reason}; save it "
        "again"
    )


def _to_bytes(parts: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(parts, buffer)
    except Exception as error:
        found = (find_unpicklable(value, name) for name, value in parts.items())
        culprit = next(filter(None, found), f"the model ({type(error).__name__}: {error})")
        raise Error(
            f"{culprit} cannot be saved; make it picklable, or save with export_model=False"
        ) from error
    return buffer.getvalue()

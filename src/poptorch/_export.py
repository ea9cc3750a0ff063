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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from poptorch._errors import Error, translated
from poptorch._logging import logger
from poptorch._option_store import require
from poptorch._version import __version__
from poptorch.enums import ConnectionType
from poptorch.options import Options
from torchkiln import runtime
from torchkiln.core import ScratchDirectory, atomic_path, check_trusted, is_shared, parse_json
from torchkiln.data import find_unpicklable

if TYPE_CHECKING:
    from poptorch._executor import PoplarExecutor

_DESCRIPTION, _PROGRAM, _MODEL = "poptorch.json", "program.torchkiln", "model.pt"


def save_executor(
    executor: PoplarExecutor,
    filename: str | os.PathLike[str],
    *,
    export_model: bool,
    save_rng_state: bool,
) -> None:
    """Write a compiled model to `filename` in one step."""
    path = Path(filename)
    if path.is_dir():
        logger.warning("%s is a directory; saving to model.poptorch in it", path)
        path = path / "model.poptorch"
    description = {
        "version": __version__,
        "has_model": export_model,
        "has_rng_state": save_rng_state,
    }
    with translated(), _scratch() as directory:
        program = directory / _PROGRAM
        executor._program.export(program)
        own = not is_shared(path)
        with atomic_path(path, own=own) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            archive.writestr(_DESCRIPTION, json.dumps(description))
            archive.write(program, _PROGRAM)
            if export_model:
                archive.writestr(_MODEL, _to_bytes(_parts(executor)))


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
    from poptorch._executor import PoplarExecutor

    with _open(filename) as archive:
        description = _read_description(archive, filename)
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
        parts = _read_model(archive, filename)
        options = parts["options"].clone()
        _go_online(options)
        if edit_opts_fn is not None:
            edit_opts_fn(options)
        executor = PoplarExecutor(
            parts["model"], options, parts["training"], optimizer=parts["optimizer"]
        )
        _install(executor, archive, description)
    return executor


def load_executable(executor: PoplarExecutor, filename: str | os.PathLike[str]) -> None:
    """Give a wrapped model the program of a file; the model keeps its weights."""
    with _open(filename) as archive:
        description = _read_description(archive, filename)
        module = executor._program.module
        weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        try:
            _install(executor, archive, description)
        finally:
            module.load_state_dict(weights)


def _parts(executor: PoplarExecutor) -> dict[str, Any]:
    return {
        "model": executor._user_model,
        "options": executor._options,
        "optimizer": executor._link.optimizer,
        "training": executor._training,
    }


def _install(
    executor: PoplarExecutor, archive: zipfile.ZipFile, description: dict[str, Any]
) -> None:
    random_state = torch.get_rng_state()
    with translated(), _scratch() as directory:
        program = runtime.load(
            _extract_program(archive, directory),
            executor._program.module,
            executor._link.optimizer,
            executor._options._to_torchkiln(),
        )
    executor._adopt_program(program)
    if not description["has_rng_state"]:
        torch.set_rng_state(random_state)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a temporary folder; what a killed process leaves of it goes with the next start."""
    folder = ScratchDirectory()
    try:
        yield folder.path
    finally:
        folder.remove()


@contextlib.contextmanager
def _open(filename: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
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


def _read_description(archive: zipfile.ZipFile, filename: Any) -> dict[str, Any]:
    try:
        description = parse_json(archive.read(_DESCRIPTION), _DESCRIPTION)
    except Exception as error:  # as above; also for an archive without it
        raise _no_such_file(filename, error) from error
    facts = ("version", "has_model", "has_rng_state")
    if not isinstance(description, dict) or any(fact not in description for fact in facts):
        raise _no_such_file(filename, f"{_DESCRIPTION} does not say {', '.join(facts)}")
    return description


def _read_model(archive: zipfile.ZipFile, filename: Any) -> dict[str, Any]:
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


def _go_online(options: Options) -> None:
    """Remove the marks of a compile-only target: whoever loads a program wants to run it."""
    options.deleteIfExists("ipu_version")
    if options.connection_type == ConnectionType.Never:
        options.connectionType(ConnectionType.Always)


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

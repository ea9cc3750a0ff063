"""The C++ compiler as Inductor calls it: ended with us, its output whole, headers kept with a seal.

Inductor takes a file for finished if it is there. A header that was compiled by half would fail
every later build, and one that a disk damaged would change the code that is made with it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchkiln.core import (
    SealBroken,
    file_lock,
    is_shared,
    make_folders,
    read_sealed,
    run_compiler,
    sha256_file,
    write_sealed,
)
from torchkiln.runtime.compile._alongside import Alongside, stop_event
from torchkiln.torch_internals._inductor import HOST_PART, compiler_error, header_of_kernels
from torchkiln.torch_internals._inductor_patches import compiler_replaced

# What no build of the last days used is removed from a workspace.
KEPT_SECONDS = 7 * 86_400
HEADERS = "precompiled_headers"
# A header of 50 bytes, what the compiler made of it (136 MB), and the seal of that.
_COMPILED = re.compile(r"c[a-z2-7]{51}\.h\.[gp]ch")

# Headers that this process compiled or looked at, by everything that makes them differ.
_known: dict[Any, str] = {}


@contextlib.contextmanager
def guarded_compiler(workspace: Path) -> Iterator[None]:
    """Let Inductor call the compiler through `run_compiler`, and keep headers in `workspace`."""
    folder = workspace / HEADERS

    def precompile(
        compile_header: Callable[..., str], header: str, command_line: str, **command: Any
    ) -> str:
        wanted = [(header, command)]
        if command.get("min_optimize") and (kernels := header_of_kernels(command)):
            # Asked for next: two cores make both in the time of one.
            wanted.append((kernels, {k: v for k, v in command.items() if k != "min_optimize"}))
        keys = [(folder, name, command_line, frozenset(own.items())) for name, own in wanted]
        missing = {
            key: functools.partial(compile_header, name, command_line, **own)
            for key, (name, own) in zip(keys, wanted, strict=True)
            if key not in _known or not _still_there(_known[key])
        }
        _known.update(zip(missing, _intact_headers(folder, list(missing.values())), strict=True))
        return _known[keys[0]]

    with Alongside() as alongside:

        def run(command_line: str, cwd: str) -> None:
            command = shlex.split(command_line)
            if _is_host_part(command):
                # Kernels are compiled meanwhile; only the linker needs both.
                alongside.start(lambda: _run_compile_command(command, None))
                return
            if "-c" not in command:
                alongside.join()
            _run_compile_command(command, cwd)

        with compiler_replaced(folder, precompile, run):
            yield


def _is_host_part(command: list[str]) -> bool:
    """Whether a command compiles the part of an entry that calls the kernels, and nothing else."""
    return "-c" in command and any(argument.endswith(HOST_PART) for argument in command)


def _intact_headers(folder: Path, makes: list[Callable[[], str]]) -> list[str]:
    """Return the paths of headers whose compiled forms are as the compiler made them."""
    if not makes:
        return []
    own = not is_shared(folder)
    make_folders(folder, own=own)
    with file_lock(folder / "seals.lock", own=own) as alone:
        before = set(folder.iterdir())
        paths = _make_at_once(makes)
        for path, make in zip(paths, makes, strict=True):
            result = _compiled(path)
            if result in before and not _has_seal(result):
                result.unlink()
                make()
                before.discard(result)
            if result not in before:
                write_sealed(_seal(result), {"sha256": sha256_file(result)}, own=own)
            os.utime(_seal(result))
        if alone:
            _drop_unused(folder)
    return paths


def _make_at_once(makes: list[Callable[[], str]]) -> list[str]:
    paths = [""] * len(makes)

    def make(place: int) -> None:
        paths[place] = makes[place]()

    with Alongside() as alongside:
        for place in range(1, len(makes)):
            alongside.start(functools.partial(make, place))
        make(0)
    return paths


def _still_there(path: str) -> bool:
    """Whether a header that this process knows was not dropped since; it is used now."""
    try:
        os.utime(_seal(_compiled(path)))
    except (OSError, ValueError):
        return False
    return True


def _compiled(path: str) -> Path:
    """Return what the compiler made of a header."""
    (found,) = (p for p in (Path(path + suffix) for suffix in (".gch", ".pch")) if p.exists())
    return found


def _drop_unused(folder: Path) -> None:
    """Remove headers by the date of their seals, which each use renews."""
    for compiled in folder.iterdir():
        if not _COMPILED.fullmatch(compiled.name):
            continue
        seal = _seal(compiled)
        with contextlib.suppress(OSError):
            used = (seal if seal.exists() else compiled).stat().st_mtime
            if used < time.time() - KEPT_SECONDS:
                # The seal last: without it, nobody would find the rest.
                for path in (compiled.with_suffix(""), compiled, seal):
                    path.unlink(missing_ok=True)


def _has_seal(compiled: Path) -> bool:
    try:
        return bool(read_sealed(_seal(compiled))["sha256"] == sha256_file(compiled))
    except (SealBroken, OSError, KeyError):
        return False


def _seal(compiled: Path) -> Path:
    return compiled.with_name(compiled.name + ".json")


def _run_compile_command(command: list[str], cwd: str | None) -> None:
    place = command.index("-o")
    output = Path(cwd or "", command[place + 1])
    arguments = command[:place] + command[place + 2 :]
    try:
        # A folder of Inductor's is gone when it takes the command for done.
        folder = cwd or str(output.parent)
        run_compiler(arguments, output, cwd=folder, stopped=stop_event())
    except subprocess.CalledProcessError as error:
        said = error.output.decode(errors="replace")
        raise compiler_error(command, said) from error

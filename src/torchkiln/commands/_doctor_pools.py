"""Pools of threads in one process: they must be one, or know of each other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchkiln.commands._findings import Finding

_MAPS = Path("/proc/self/maps")
_RUNTIMES = re.compile(r"/lib(?:gomp|omp|iomp5)(?:-\w+)?\.so[.\d]*$")


def thread_pools() -> Iterator[Finding]:
    """Yield the OpenMP libraries that are loaded, what Numba does, and variables that disagree."""
    import numba
    import torch

    # The pool is made by the first operation that is worth it.
    torch.ones(2**16).add(1)
    runtimes = openmp_runtimes(_read(_MAPS))
    yield Finding(
        "OpenMP",
        ", ".join(runtimes) or "no library found in this process",
        ""
        if len(runtimes) < 2
        else "several pools compete for the cores: install torch and its neighbours from one place",
    )
    yield Finding(
        "Numba",
        f"{numba.config.NUMBA_NUM_THREADS} threads, layer {numba.config.THREADING_LAYER}, allowed; "
        "none started: Torchkiln's loops run on the thread that calls them",
    )
    yield Finding("loader workers", "one thread each, on any core that the program may use")
    for text, remedy in contradictions(os.environ, len(os.sched_getaffinity(0))):
        yield Finding("variables", text, remedy)


def openmp_runtimes(maps: str) -> list[str]:
    """Return the paths of the OpenMP libraries in a list of mapped files, each once."""
    # Five columns of numbers, then a path, or nothing for memory that is no file's.
    columns = (line.split(maxsplit=5) for line in maps.splitlines())
    paths = {column[5].strip() for column in columns if len(column) == 6}
    return sorted(path for path in paths if _RUNTIMES.search(path))


def contradictions(variables: Mapping[str, str], cores: int) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the variables that rule threads, and the remedy."""
    counts = {
        name: int(variables[name].split(",")[0])
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        if variables.get(name, "").split(",")[0].isdecimal()
    }
    if len(set(counts.values())) > 1:
        said = " but ".join(f"{name}={count}" for name, count in counts.items())
        yield said, f"two numbers for one pool: set both to {min(*counts.values(), cores)}"
    bind, places = variables.get("OMP_PROC_BIND", ""), variables.get("GOMP_CPU_AFFINITY", "")
    if bind.lower() == "false" and places:
        yield (
            f"OMP_PROC_BIND=false but GOMP_CPU_AFFINITY={places!r}",
            "threads stay unpinned: set OMP_PROC_BIND=true, or unset GOMP_CPU_AFFINITY",
        )
    listed = places.split()
    threads = counts.get("OMP_NUM_THREADS", cores)
    if listed and all(entry.isdecimal() for entry in listed) and len(set(listed)) < threads:
        yield (
            f"GOMP_CPU_AFFINITY={places!r} names {len(set(listed))} cores for {threads} threads",
            f"threads share a core: set OMP_NUM_THREADS={len(set(listed))}, or name more cores",
        )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

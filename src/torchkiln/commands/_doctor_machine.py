"""Devices, memory, threads and compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from torchkiln.commands._findings import Finding
from torchkiln.core._core_shares import cpu_quota
from torchkiln.core._machine import processor_name
from torchkiln.core._other_processes import Reading

_SHARED_MEMORY = Path("/dev/shm")
# Long enough for counters that move a hundred times a second.
_LOOK_SECONDS = 0.5
_LEAST_SHARED_MEMORY_BYTES = 256 * 2**20
# What every generated program needs: the C++ library, OpenMP, and a linker.
_TRIAL = """
#include <cmath>
#include <omp.h>
extern "C" int trial() { return omp_get_max_threads() + (int) std::sqrt(4.0); }
"""
_TRIAL_FLAGS = ("-x", "c++", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-", "-o")


def machine() -> Iterator[Finding]:
    """Yield devices, memory, and which low precisions are fast."""
    import psutil
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("processor", f"{processor_name()}, {capability}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            memory = properties.total_memory / 2**30
            yield Finding(f"cuda:{index}", f"{properties.name}, {memory:.0f} GB")
    else:
        yield Finding("GPU", "none that torch can use")
    memory_state = psutil.virtual_memory()
    free, total = memory_state.available / 2**30, memory_state.total / 2**30
    yield Finding(
        "memory",
        f"{free:.1f} of {total:.1f} GB free",
        "" if free > 1 else "less than 1 GB is free: end other programs, or take smaller batches",
    )
    if _SHARED_MEMORY.is_dir():
        left = shutil.disk_usage(_SHARED_MEMORY).free
        remedy = "loader workers may fail: use --num_workers 0, or docker run --shm-size=1g"
        yield Finding(
            "shared memory",
            f"{left / 2**20:,.0f} MB free in {_SHARED_MEMORY}",
            "" if left > _LEAST_SHARED_MEMORY_BYTES else remedy,
        )
    yield Finding("low precision", _precisions())


def threads() -> Iterator[Finding]:
    """Yield how many threads torch uses, whether they are pinned, and who else is computing."""
    import torch

    cores, used = len(os.sched_getaffinity(0)), torch.get_num_threads()
    yield Finding(
        "torch",
        f"{used} threads on {cores} cores",
        "" if used <= cores else f"more threads than cores: set OMP_NUM_THREADS={cores}",
    )
    quota = cpu_quota()
    if quota is not None and quota < min(used, cores):
        count = max(int(quota), 1)
        yield Finding(
            "quota",
            f"this container may use {quota:.1f} cores",
            f"threads will wait for each other: set OMP_NUM_THREADS={count}",
        )
    pinned = "OMP_PROC_BIND" in os.environ or "GOMP_CPU_AFFINITY" in os.environ
    yield Finding(
        "pinning",
        "each thread is kept on a core" if pinned else "threads may wander from core to core",
        "" if pinned else "set OMP_PROC_BIND=true for steady times (`torchkiln bench` does)",
    )
    yield _load()


def _load() -> Finding:
    """Say what other processes take of the cores just now."""
    before = Reading()
    time.sleep(_LOOK_SECONDS)
    load = Reading().load_since(before)
    text = f"{os.getloadavg()[0]:.1f} processes wanted a core over the last minute"
    if load is None:
        return Finding("load", text)
    return Finding(
        "load",
        f"{load} now; {text}",
        "end them, or measure later: times will be noise" if load.is_high else "",
    )


def compiler() -> Iterator[Finding]:
    """Yield the C++ compiler and whether it can build what programs consist of."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    remedy = "install g++ (Debian: apt-get install g++), or run with TORCHKILN_BACKEND=capture"
    if path is None:
        yield Finding("C++ compiler", f"{name} not found", remedy)
        return
    done = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False, timeout=20
    )
    yield Finding("C++ compiler", done.stdout.splitlines()[0] if done.stdout else path)
    with tempfile.TemporaryDirectory(prefix="torchkiln-") as folder:
        built = subprocess.run(
            [path, *_TRIAL_FLAGS, str(Path(folder) / "trial.so")],
            input=_TRIAL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    if built.returncode:
        lines = [line for line in built.stderr.splitlines() if "error" in line]
        reason = (lines or built.stderr.splitlines() or ["no message"])[0]
        yield Finding("trial", f"a small program with OpenMP does not build: {reason}", remedy)
    else:
        yield Finding("trial", "a small program with OpenMP builds")


def _precisions() -> str:
    import torch

    has = torch.cpu.get_capabilities()
    fast = {
        "bfloat16": any(has.get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16")),
        "float16": any(has.get(flag) for flag in ("avx512_fp16", "amx_fp16", "fp16")),
    }
    return ", ".join(f"{name} {'fast' if ok else 'slow on this CPU'}" for name, ok in fast.items())

"""`torchkiln doctor`: what is here, and what would stop a program from being fast."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

from torchkiln.core import Options


def print_diagnosis() -> None:
    """Print versions, devices, threads, compiler and caches."""
    import torch
    from rich.console import Console
    from rich.table import Table

    import torchkiln

    table = Table(title="torchkiln doctor", title_justify="left", show_header=False)
    table.add_column("what", style="bold")
    table.add_column("finding")
    table.add_row("torchkiln", torchkiln.__version__)
    table.add_row("Python", platform.python_version())
    table.add_row("torch", f"{torch.__version__} ({torch.backends.cpu.get_cpu_capability()})")
    table.add_row("devices", _devices())
    table.add_row("threads", _threads())
    table.add_row("low precision", _precisions())
    table.add_row("C++ compiler", _compiler())
    table.add_row("executable cache", _cache())
    table.add_row("Inductor's workspace", _inductor_workspace())
    Console(width=None if os.isatty(1) else 120).print(table)


def _devices() -> str:
    import torch

    names = ["cpu"]
    if torch.cuda.is_available():
        names += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names)


def _threads() -> str:
    import torch

    pinned = "OMP_PROC_BIND" in os.environ or "GOMP_CPU_AFFINITY" in os.environ
    cores = len(os.sched_getaffinity(0))
    hint = "pinned" if pinned else "not pinned: set OMP_PROC_BIND=true for steady times"
    return f"{torch.get_num_threads()} of {cores} cores, {hint}"


def _precisions() -> str:
    import torch

    has = torch.cpu.get_capabilities()
    fast = {
        "bfloat16": any(has.get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16")),
        "float16": any(has.get(flag) for flag in ("avx512_fp16", "amx_fp16", "fp16")),
    }
    return ", ".join(f"{name} {'fast' if ok else 'slow on this CPU'}" for name, ok in fast.items())


def _compiler() -> str:
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        return f"{name} not found: install g++, or use backend='capture'"
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.stdout else path


def _cache() -> str:
    from torchkiln.runtime._cache import ExecutableCache

    options = Options()
    if options.cache_dir is None:
        return "off: set POPTORCH_CACHE_DIR to start from disk next time"
    entries = ExecutableCache(options.cache_dir, options.cache_limit_bytes).entries()
    size = sum(entry.size_bytes for entry in entries) / 2**20
    limit = options.cache_limit_bytes / 2**20
    return (
        f"{len(entries)} executables, {size:.1f} of {limit:,.0f} MB in {options.cache_dir} "
        "(torchkiln cache clear)"
    )


def _inductor_workspace() -> str:
    import getpass
    import tempfile
    from pathlib import Path

    name = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    path = Path(name or Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")
    if not path.is_dir():
        return f"{path} (empty)"
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**20
    return f"{size:,.0f} MB of build leftovers in {path} (safe to delete)"

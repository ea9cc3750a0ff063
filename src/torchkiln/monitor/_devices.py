"""What this machine computes with: processor, caches, instruction sets, memory, GPUs. No torch."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

_PROC = Path("/proc")
_CACHES = Path("/sys/devices/system/cpu")
# What makes a difference to compiled programs, by the names that Linux has for it.
_SETS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512-VNNI",
    "avx512_bf16": "AVX512-BF16",
    "avx512_fp16": "AVX512-FP16",
    "amx_tile": "AMX",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimd": "NEON",
    "sve": "SVE",
    "sve2": "SVE2",
    "bf16": "BF16",
    "i8mm": "I8MM",
}
_QUERY = "index,name,memory.total,driver_version,clocks.sm,temperature.gpu,power.draw"
_QUERY_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Memory of the processor.

    Args:
        level: 1 is the nearest to a core.
        kind: "data", "instruction" or "unified".
        size_bytes: Of each.
        count: How many there are.
    """

    level: int
    kind: str
    size_bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The processor and its memory.

    Args:
        name: What it calls itself.
        num_cores: Of the machine, without threads that share one; None: unknown.
        num_threads: That the machine runs at once.
        num_usable: Of these, those that this process may use.
        clock_mhz: At this moment; None: unknown.
        caches: By level.
        instruction_sets: Those that matter to compiled programs.
        memory_bytes: Of the machine.
        free_bytes: Of these, what programs can have now.
    """

    name: str
    num_cores: int | None
    num_threads: int
    num_usable: int
    clock_mhz: float | None
    caches: tuple[Cache, ...]
    instruction_sets: tuple[str, ...]
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A graphics processor; what its driver does not tell is None.

    Args:
        index: As torch counts: cuda:0 and so on, if CUDA_VISIBLE_DEVICES hides none.
        name: What it calls itself.
        memory_bytes: That it has.
        driver: Version of its driver.
        clock_mhz: At this moment.
        temperature_c: At this moment.
        power_w: At this moment.
    """

    index: int
    name: str
    memory_bytes: int | None = None
    driver: str | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """All of them."""

    processor: Processor
    gpus: tuple[Gpu, ...]


def find_devices() -> Devices:
    """Look at this machine."""
    return Devices(processor=find_processor(), gpus=find_gpus())


def find_processor() -> Processor:
    """Look at the processor and its memory."""
    fields = _processor_fields()
    memory = psutil.virtual_memory()
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    count = os.cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    return Processor(
        name=fields.get("model name") or platform.processor() or platform.machine(),
        num_cores=psutil.cpu_count(logical=False),
        num_threads=count,
        num_usable=len(affinity(0)) if affinity else count,
        clock_mhz=_number(fields.get("cpu MHz", "")),
        caches=_find_caches(),
        instruction_sets=tuple(name for flag, name in _SETS.items() if flag in flags),
        memory_bytes=memory.total,
        free_bytes=memory.available,
    )


def find_gpus() -> tuple[Gpu, ...]:
    """Ask NVIDIA's driver for its GPUs; none if there is no driver."""
    command = shutil.which("nvidia-smi")
    if command is not None:
        try:
            done = subprocess.run(
                [command, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                timeout=_QUERY_TIMEOUT_S,
                check=True,
            )
            return tuple(parse_gpus(done.stdout.splitlines()))
        except (OSError, subprocess.SubprocessError):
            pass  # the driver may be there all the same
    names = []
    for path in sorted((_PROC / "driver" / "nvidia" / "gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", _read(path), re.MULTILINE)
        names.append(found[1].strip() if found else "NVIDIA GPU")
    return tuple(Gpu(index=index, name=name) for index, name in enumerate(names))


def parse_gpus(lines: Iterable[str]) -> Iterable[Gpu]:
    """Yield what lines of nvidia-smi say."""
    for line in lines:
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_QUERY.split(",")) or not values[0].isdecimal():
            continue
        index, name, memory, driver, clock, temperature, power = values
        mebibytes = _number(memory)
        yield Gpu(
            index=int(index),
            name=name,
            memory_bytes=None if mebibytes is None else int(mebibytes) * 2**20,
            driver=driver,
            clock_mhz=_number(clock),
            temperature_c=_number(temperature),
            power_w=_number(power),
        )


def _processor_fields() -> dict[str, str]:
    """Return what the system says of its first core."""
    fields: dict[str, str] = {}
    for line in _read(_PROC / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _find_caches() -> tuple[Cache, ...]:
    found: dict[tuple[int, str, int], set[str]] = {}
    for folder in _CACHES.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, kind = _read(folder / "level").strip(), _read(folder / "type").strip().lower()
        size = re.fullmatch(r"(\d+)([KM]?)", _read(folder / "size").strip())
        if not level.isdecimal() or size is None:
            continue
        factor = {"": 1, "K": 2**10, "M": 2**20}[size[2]]
        # One cache may serve several cores, which all tell of it.
        cores = _read(folder / "shared_cpu_list").strip()
        found.setdefault((int(level), kind, int(size[1]) * factor), set()).add(cores)
    return tuple(
        Cache(level=level, kind=kind, size_bytes=size, count=len(found[level, kind, size]))
        for level, kind, size in sorted(found)
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

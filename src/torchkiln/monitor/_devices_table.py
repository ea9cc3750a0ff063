"""`torchkiln devices`: what this machine computes with, for people and for programs."""

from __future__ import annotations

import dataclasses
import json

from rich.markup import escape
from rich.table import Table

from torchkiln.core import __version__
from torchkiln.monitor._devices import Cache, Devices, Gpu, Processor
from torchkiln.monitor._table import bytes_text

_KINDS = {"data": "d", "instruction": "i"}


def devices_table(devices: Devices) -> Table:
    """Return a table of the devices, the processor first."""
    table = Table(show_header=False, title="torchkiln devices", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    cpu = devices.processor
    table.add_row("0  CPU", escape(cpu.name))
    table.add_row("   cores", _cores(cpu))
    table.add_row("   caches", ", ".join(map(_cache, cpu.caches)) or "unknown")
    table.add_row("   instruction sets", ", ".join(cpu.instruction_sets) or "none that matter")
    free, total = bytes_text(cpu.free_bytes), bytes_text(cpu.memory_bytes)
    table.add_row("   memory", f"{total}, {free} free")
    for gpu in devices.gpus:
        table.add_section()
        table.add_row(f"{device_id(gpu)}  cuda:{gpu.index}", escape(describe_gpu(gpu)))
    if not devices.gpus:
        table.add_section()
        table.add_row("GPU", "none that NVIDIA's driver tells of")
    return table


def devices_json(devices: Devices) -> str:
    record = {"torchkiln": __version__, **dataclasses.asdict(devices)}
    return json.dumps(record, indent=2)


def device_lines(devices: Devices) -> list[str]:
    """Return one line for each device, as `gc-info -l` has them."""
    cpu = devices.processor
    lines = [f"-+- Id: [0], type: [CPU], name: [{cpu.name}], threads: [{cpu.num_usable}]"]
    for gpu in devices.gpus:
        lines.append(f"-+- Id: [{device_id(gpu)}], type: [GPU], name: [{gpu.name}]")
    return lines


def device_id(gpu: Gpu) -> int:
    """Return the number of a GPU among all devices; the processor has number 0."""
    return gpu.index + 1


def describe_gpu(gpu: Gpu) -> str:
    parts = [gpu.name]
    if gpu.memory_bytes is not None:
        parts.append(bytes_text(gpu.memory_bytes))
    if gpu.driver is not None:
        parts.append(f"driver {gpu.driver}")
    return ", ".join(parts)


def _cores(cpu: Processor) -> str:
    threads = f"{cpu.num_threads} thread{'s' * (cpu.num_threads != 1)}"
    text = threads
    if cpu.num_cores is not None:
        text = f"{cpu.num_cores} core{'s' * (cpu.num_cores != 1)} with {threads}"
    if cpu.num_usable < cpu.num_threads:
        text += f", of which this process may use {cpu.num_usable}"
    return text


def _cache(cache: Cache) -> str:
    size = cache.size_bytes
    amount = f"{size / 2**20:g} MB" if size >= 2**20 else f"{size / 2**10:g} KB"
    times = f"{cache.count} x " if cache.count > 1 else ""
    return f"L{cache.level}{_KINDS.get(cache.kind, '')} {times}{amount}"

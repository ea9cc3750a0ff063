"""`gc-monitor`: the two boxed tables of Graphcore's command, filled with what there is here.

A machine stands for a partition, its processor for device 0, GPUs for those that follow. What has
no counterpart is N/A.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchkiln.core import __version__
from torchkiln.monitor._devices import Devices
from torchkiln.monitor._devices_table import device_id
from torchkiln.monitor._status import MachineStatus, ProcessStatus
from torchkiln.monitor._table import span_text

_NONE = "N/A"
# Widths between the bars, as the original has them.
_DEVICE_HEAD = (15, 81)
_DEVICE_WIDTHS = (13, 20, 8, 14, 10, 7, 4, 6, 7)
_DEVICE_TITLES = (
    "IPU-M",
    "Serial",
    "IPU-M SW",
    "Server version",
    "ICU FW",
    "Type",
    "ID",
    "IPU#",
    "Routing",
)
_PROCESS_HEAD = (113, 24, 17)
_PROCESS_WIDTHS = (8, 82, 8, 12, 4, 10, 8, 8, 8)
_PROCESS_TITLES = ("PID", "Command", "Time", "User", "ID", "Clock", "Temp", "Temp", "Power")


def monitor_boxes(devices: Devices, status: MachineStatus, host: str) -> str:
    """Return both tables.

    Args:
        devices: Of this machine.
        status: What runs on it.
        host: What it is called.
    """
    return "\n".join([*_device_box(devices, host), *_process_box(devices, status, host)])


def _device_box(devices: Devices, host: str) -> list[str]:
    count = 1 + len(devices.gpus)
    head = f"Partition: {host} [active] has {count} device{'s' * (count != 1)}"
    rows = [(host, _NONE, __version__, _NONE, _NONE, "CPU", "0", "0", _NONE)]
    for gpu in devices.gpus:
        number = str(device_id(gpu))
        driver = gpu.driver or _NONE
        rows.append((host, _NONE, __version__, driver, _NONE, "GPU", number, number, _NONE))
    return [
        _line(_DEVICE_HEAD),
        _row(("gc-monitor", head), _DEVICE_HEAD),
        _line(_DEVICE_WIDTHS),
        _row(_DEVICE_TITLES, _DEVICE_WIDTHS),
        _line(_DEVICE_WIDTHS),
        *(_row(row, _DEVICE_WIDTHS) for row in rows),
        _line(_DEVICE_WIDTHS),
    ]


def _process_box(devices: Devices, status: MachineStatus, host: str) -> list[str]:
    rows = [_process_row(devices, process) for process in status.processes]
    for other in status.others:
        time = span_text(other.seconds)
        rows.append((str(other.pid), _NONE, time, other.user, *[_NONE] * 5))
    if not rows:
        width = (sum(_DEVICE_WIDTHS) + len(_DEVICE_WIDTHS) - 1,)
        text = f"No attached processes in partition {host}"
        return [_line(width), _row((text,), width), _line(width)]
    head = (f"Attached processes in partition {host}", "IPU", "Board")
    return [
        _line(_PROCESS_HEAD),
        _row(head, _PROCESS_HEAD),
        _line(_PROCESS_WIDTHS),
        _row(_PROCESS_TITLES, _PROCESS_WIDTHS),
        _line(_PROCESS_WIDTHS),
        *(_row(row, _PROCESS_WIDTHS) for row in rows),
        _line(_PROCESS_WIDTHS),
    ]


def _process_row(devices: Devices, process: ProcessStatus) -> tuple[str, ...]:
    used = sorted({number_of(program.device) for program in process.programs if program.device})
    clock = temperature = power = _NONE
    if used == [0] and devices.processor.clock_mhz is not None:
        clock = f"{devices.processor.clock_mhz:.0f}MHz"
    for gpu in devices.gpus:
        if used == [device_id(gpu)]:
            clock = _NONE if gpu.clock_mhz is None else f"{gpu.clock_mhz:.0f}MHz"
            temperature = _NONE if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}C"
            power = _NONE if gpu.power_w is None else f"{gpu.power_w:.0f}W"
    return (
        str(process.pid),
        process.command,
        span_text(process.seconds),
        process.user,
        ",".join(map(str, used)) or _NONE,
        clock,
        temperature,
        _NONE,
        power,
    )


def number_of(device: str) -> int:
    """Return the number of torch's device: 0 for the processor, 1 for the first GPU."""
    kind, _, index = device.partition(":")
    return 0 if kind == "cpu" else int(index or 0) + 1


def _line(widths: Sequence[int]) -> str:
    return "+".join(["", *("-" * width for width in widths), ""])


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "|".join(
        ["", *(_cell(cell, width) for cell, width in zip(cells, widths, strict=True)), ""]
    )


def _cell(text: str, width: int) -> str:
    """Return a text in the middle of its cell; what is too long ends with dots, as in a table."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    if len(shown) > width:
        shown = f"{shown[: width - 3]}..." if width > 6 else shown[:width]
    left = (width - len(shown)) // 2
    return (" " * left + shown).ljust(width)

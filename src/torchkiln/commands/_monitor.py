"""`torchkiln monitor` and `torchkiln devices`, and the commands with Graphcore's names."""

from __future__ import annotations

import argparse
import platform
import sys

from torchkiln.core import OptionsError, __version__
from torchkiln.core._console import make_console
from torchkiln.core._progress import is_terminal
from torchkiln.monitor import find_devices, read_programs
from torchkiln.monitor._boxes import monitor_boxes
from torchkiln.monitor._devices_table import device_lines, devices_json, devices_table
from torchkiln.monitor._live import show_live
from torchkiln.monitor._record import status_json
from torchkiln.monitor._table import status_table

# Wide enough for all columns: whoever reads a file can cut it.
_FILE_WIDTH = 160
_LEAST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.1, 3600.0


def run_monitor(*, once: bool, as_json: bool, interval: float) -> None:
    """Show what runs: live on a terminal, else once.

    Raises:
        OptionsError: The interval is out of range.
    """
    if not _LEAST_INTERVAL_S <= interval <= _LONGEST_INTERVAL_S:
        raise OptionsError(
            f"interval must be from {_LEAST_INTERVAL_S} to {_LONGEST_INTERVAL_S:.0f} seconds, got "
            f"{interval}"
        )
    console = make_console(plain_width=_FILE_WIDTH)
    if as_json:
        sys.stdout.write(status_json(read_programs(interval)) + "\n")
    elif once or not is_terminal(sys.stdout):
        console.print(status_table(read_programs(interval), console.width))
    else:
        show_live(console, interval)


def print_devices(*, as_json: bool) -> None:
    """Print what this machine computes with."""
    devices = find_devices()
    if as_json:
        sys.stdout.write(devices_json(devices) + "\n")
    else:
        make_console().print(devices_table(devices))


def gc_monitor(args: list[str] | None = None) -> int:
    """Print the tables of Graphcore's `gc-monitor` for this machine."""
    parser = argparse.ArgumentParser(
        prog="gc-monitor",
        description="Torchkiln's programs on this machine, in the tables of Graphcore's command "
        "of that name. `torchkiln monitor` tells more, and live.",
    )
    parser.add_argument("--version", action="version", version=f"torchkiln {__version__}")
    parser.parse_args(args)
    host = platform.node() or "localhost"
    sys.stdout.write(monitor_boxes(find_devices(), read_programs(0.0), host) + "\n")
    return 0


def gc_info(args: list[str] | None = None) -> int:
    """Print the devices of this machine, as Graphcore's `gc-info -l` does."""
    parser = argparse.ArgumentParser(
        prog="gc-info",
        description="Devices of this machine, by the name of Graphcore's command; `torchkiln "
        "devices` tells more.",
    )
    parser.add_argument("-l", "--list-devices", action="store_true", help="one line each")
    parser.add_argument("--version", action="version", version=f"torchkiln {__version__}")
    parser.parse_args(args)
    sys.stdout.write("\n".join(device_lines(find_devices())) + "\n")
    return 0

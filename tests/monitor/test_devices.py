from __future__ import annotations

import json
import os

from torchkiln.monitor import _devices
from torchkiln.monitor._devices import Cache, find_devices, find_gpus, find_processor, parse_gpus
from torchkiln.monitor._devices_table import device_lines, devices_json, devices_table


def test_this_machine_has_a_processor():
    cpu = find_processor()
    assert cpu.name
    assert cpu.num_usable == len(os.sched_getaffinity(0))
    assert 0 < cpu.free_bytes <= cpu.memory_bytes


def test_what_the_system_says_is_read(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(
        "processor : 0\nmodel name : Some CPU\ncpu MHz : 2500.5\nflags : avx2 avx512f amx_tile\n"
        "\nprocessor : 1\nmodel name : Some CPU\ncpu MHz : 100\n"
    )
    for core, shared in ((0, "0-1"), (1, "0-1")):
        for index, (level, kind, size, cores) in enumerate(
            [("1", "Data", "48K", str(core)), ("3", "Unified", "32768K", shared)]
        ):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in zip(
                ("level", "type", "size", "shared_cpu_list"),
                (level, kind, size, cores),
                strict=True,
            ):
                (folder / name).write_text(value + "\n")
    monkeypatch.setattr(_devices, "_PROC", tmp_path)
    monkeypatch.setattr(_devices, "_CACHES", tmp_path)
    cpu = find_processor()
    assert (cpu.name, cpu.clock_mhz) == ("Some CPU", 2500.5)
    assert cpu.instruction_sets == ("AVX2", "AVX512", "AMX")
    assert cpu.caches == (
        Cache(level=1, kind="data", size_bytes=48 * 2**10, count=2),
        Cache(level=3, kind="unified", size_bytes=32 * 2**20, count=1),
    )


def test_lines_of_the_driver():
    gpus = list(
        parse_gpus(
            [
                "0, NVIDIA A100-SXM4-40GB, 40960, 550.54, 1410, 41, 61.72",
                "1, Old, [N/A], 550.54, [N/A], 30, [Not Supported]",
                "No devices were found",
            ]
        )
    )
    assert [gpu.name for gpu in gpus] == ["NVIDIA A100-SXM4-40GB", "Old"]
    assert gpus[0].memory_bytes == 40960 * 2**20
    assert (gpus[1].memory_bytes, gpus[1].power_w, gpus[1].temperature_c) == (None, None, 30)


def test_a_driver_without_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(_devices.shutil, "which", lambda name: None)
    monkeypatch.setattr(_devices, "_PROC", tmp_path)
    assert find_gpus() == ()
    folder = tmp_path / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA T4\nIRQ: 42\n")
    assert [gpu.name for gpu in find_gpus()] == ["NVIDIA T4"]


def test_devices_for_people_and_programs():
    devices = find_devices()
    assert json.loads(devices_json(devices))["processor"]["name"] == devices.processor.name
    assert device_lines(devices)[0].startswith("-+- Id: [0], type: [CPU]")
    assert devices_table(devices).row_count >= 6

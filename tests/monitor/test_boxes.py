"""`gc-monitor` has the shape of the original's tables."""

from __future__ import annotations

from _monitor_samples import sample_machine, sample_process, sample_program

from torchkiln.monitor._boxes import monitor_boxes, number_of
from torchkiln.monitor._devices import Devices, Gpu, Processor

CPU = Processor(
    name="AMD EPYC",
    num_cores=2,
    num_threads=2,
    num_usable=2,
    clock_mhz=1330.4,
    caches=(),
    instruction_sets=("AVX2",),
    memory_bytes=2**34,
    free_bytes=2**33,
)
# As the original draws them.
DEVICE_HEAD = "+---------------+" + "-" * 81 + "+"
DEVICE_LINE = (
    "+-------------+--------------------+--------+--------------+----------+-------+----+------+"
    "-------+"
)
DEVICE_TITLES = (
    "|    IPU-M    |       Serial       |IPU-M SW|Server version|  ICU FW  | Type  | ID | IPU# |"
    "Routing|"
)
PROCESS_TITLES = (
    "|  PID   |                                     Command                                      |"
    "  Time  |    User    | ID |  Clock   |  Temp  |  Temp  | Power  |"
)


def test_both_tables_have_the_original_shape():
    status = sample_machine(sample_process(command="python", seconds=13.0), others=())
    lines = monitor_boxes(Devices(processor=CPU, gpus=()), status, "vm").splitlines()
    assert lines[0] == DEVICE_HEAD
    assert lines[1].startswith("|  gc-monitor   |")
    assert lines[2] == lines[4] == lines[6] == DEVICE_LINE
    assert lines[3] == DEVICE_TITLES
    assert lines[10] == PROCESS_TITLES
    assert len({len(line) for line in lines[:7]}) == 1
    assert len({len(line) for line in lines[7:]}) == 1
    assert lines[12] == (
        "| 205698 |                                      python                                "
        "      |  13s   | trainee01  | 0  | 1330MHz  |  N/A   |  N/A   |  N/A   |"
    )


def test_gpus_follow_the_processor():
    gpu = Gpu(index=0, name="A100", driver="550.1", clock_mhz=1410, temperature_c=40, power_w=61.7)
    process = sample_process(programs=(sample_program(device="cuda:0"),))
    text = monitor_boxes(Devices(processor=CPU, gpus=(gpu,)), sample_machine(process), "vm")
    assert "has 2 devices" in text
    assert "|  GPU  | 1  |  1   |" in text
    assert "| 1  | 1410MHz  |  40C   |  N/A   |  62W   |" in text
    assert (number_of("cpu"), number_of("cuda"), number_of("cuda:3")) == (0, 1, 4)


def test_no_processes_are_said():
    text = monitor_boxes(Devices(processor=CPU, gpus=()), sample_machine(others=()), "vm")
    assert "No attached processes in partition vm" in text
    assert len({len(line) for line in text.splitlines()}) == 1


def test_long_and_odd_texts_keep_the_frame():
    process = sample_process(command="x\x1b[31m\n" * 40, user="a-very-long-name")
    text = monitor_boxes(Devices(processor=CPU, gpus=()), sample_machine(process), "h" * 300)
    lines = text.splitlines()
    assert "\x1b" not in text
    assert len({len(line) for line in lines[:7]}) == 1
    assert len({len(line) for line in lines[7:]}) == 1

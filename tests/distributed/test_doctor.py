"""`torchkiln doctor` under a launcher: one diagnosis, with all ranks in it."""

from __future__ import annotations

import json
import os

from launching import torchrun

DOCTOR = """
import json, sys
from torchkiln.commands import _doctor, _doctor_processes

_doctor._probes = lambda: {"Processes": _doctor_processes.processes}  # the rest takes seconds
_doctor.print_diagnosis_record()
"""


def test_rank_0_tells_what_every_rank_has():
    outcome = torchrun(DOCTOR).ok()
    record = json.loads(outcome.stdout)  # printed once
    told = {entry["what"]: entry["text"] for entry in record["findings"]["Processes"]}
    assert told["launcher"] == "torchrun, 2 processes"
    for rank in range(2):
        assert "talks over lo" in told[f"rank {rank}"]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 2:
        assert f"1 thread on core {cores[0]}" in told["rank 0"]
        assert f"1 thread on core {cores[1]}" in told["rank 1"]
    assert record["remedies"] == []

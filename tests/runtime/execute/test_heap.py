"""Memory that a step frees stays in the process."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from torchkiln.runtime.execute._heap import keep_freed_memory
if {keep}:
    keep_freed_memory()
def use():
    for _ in range(4):
        torch.ones(2**24)  # 64 MB
# Small allocations settle among the large ones first: so the fewest of several times.
fewest = []
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use()
    fewest.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(fewest))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is told anything")
def test_large_tensors_are_not_cleared_by_the_system_each_time():
    def count(keep):
        command = [sys.executable, "-c", FAULTS.format(keep=keep)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return int(done.stdout)

    # Huge pages may be on or off: so as a share.
    assert count(True) < count(False) / 10

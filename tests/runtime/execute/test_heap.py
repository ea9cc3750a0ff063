"""Memory that a step frees stays in the process while that is small."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from torchkiln.runtime.execute import _heap
if {in_stage}:
    _heap.give_back_freed_memory()
for share in {small_shares}:
    _heap._SMALL_SHARE = share  # 0: the process is large, 1: it is small
    _heap.keep_freed_memory_if_small()
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


def num_faults(*small_shares, in_stage=False):
    """Return how often the system has to give a page, after calls in a small or large process."""
    code = FAULTS.format(small_shares=small_shares, in_stage=in_stage)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is told anything")
def test_large_tensors_are_cleared_each_time_in_large_processes_only():
    usual = num_faults()
    # Huge pages may be on or off: so as a share.
    assert num_faults(1) < usual / 10
    assert num_faults(0) > usual / 2
    assert num_faults(1, 0) > usual / 2


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is told anything")
def test_a_stage_keeps_no_large_pieces_however_small_it_is():
    assert num_faults(1, in_stage=True) > num_faults() / 2

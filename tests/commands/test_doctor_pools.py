import pytest

from torchkiln.commands._doctor_pools import contradictions, openmp_runtimes, thread_pools

MAPS = """
7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libgomp.so.1.0.0
7f01-7f02 r--p 00000000 08:01 12 /usr/lib/libgomp.so.1.0.0
7f02-7f03 r-xp 00000000 08:01 13 /venv/torch.libs/libgomp-a34b3233.so.1
7f03-7f04 r-xp 00000000 08:01 14 /usr/lib/libgomposite.so.1
7f04-7f05 rw-p 00000000 00:00 0
"""


def test_each_openmp_library_is_found_once():
    assert openmp_runtimes(MAPS) == [
        "/usr/lib/libgomp.so.1.0.0",
        "/venv/torch.libs/libgomp-a34b3233.so.1",
    ]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "4"}, "set both to 2"),
        ({"OMP_PROC_BIND": "false", "GOMP_CPU_AFFINITY": "0 1"}, "unset GOMP_CPU_AFFINITY"),
        ({"OMP_NUM_THREADS": "2", "GOMP_CPU_AFFINITY": "1 1"}, "set OMP_NUM_THREADS=1"),
    ],
    ids=["numbers", "binding", "places"],
)
def test_variables_that_disagree_come_with_a_remedy(variables, said):
    ((_, remedy),) = contradictions(variables, cores=2)
    assert said in remedy


def test_the_policy_of_the_program_contradicts_nothing():
    variables = {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "OMP_PROC_BIND": "true",
        "GOMP_CPU_AFFINITY": "0 1",
    }
    assert not list(contradictions(variables, cores=2))


def test_pools_of_this_process_are_described():
    found = {finding.what: finding.text for finding in thread_pools()}
    assert "threads" in found["Numba"]
    assert "omp" in found["OpenMP"]

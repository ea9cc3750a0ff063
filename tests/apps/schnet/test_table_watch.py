import math

import pytest

from torchkiln.apps.schnet._filter_tables import TableWatch


class Network:
    """Stands for a SchNet whose table errs by what a test says."""

    def __init__(self, *errors):
        self._errors = iter(errors)

    def table_error(self):
        return next(self._errors)


def test_a_bad_table_is_told_once():
    watch = TableWatch(Network(1e-6, 1e-2, 1e-2))
    told = [watch.look() for _ in range(3)]
    assert told[0] is None
    assert "off by 1.0e-02" in told[1]
    assert told[2] is None
    assert watch.error == 1e-2


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_no_fault_of_the_table(error):
    watch = TableWatch(Network(error, 1e-2))
    assert watch.look() is None
    assert watch.look() is not None

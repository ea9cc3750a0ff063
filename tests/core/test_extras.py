import pytest

from torchkiln.core import OptionsError
from torchkiln.core._extras import require_package


def test_a_package_that_is_there_is_no_error():
    require_package("json", wanted_for="--json", extra="json", otherwise="leave it out")


def test_a_missing_package_has_two_remedies():
    with pytest.raises(OptionsError) as caught:
        require_package("no_such", wanted_for="--fancy", extra="fancy", otherwise="leave it out")
    assert str(caught.value) == (
        "--fancy needs the package no_such, which is not installed; run "
        "`pip install 'torchkiln[fancy]'`, or leave it out"
    )

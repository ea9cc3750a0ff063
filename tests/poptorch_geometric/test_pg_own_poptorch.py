"""Torchkiln's `poptorch_geometric` beside somebody else's `poptorch`."""

import pytest

import poptorch
from poptorch_geometric._own_poptorch import require_own_poptorch


def test_torchkilns_own_poptorch_is_accepted():
    require_own_poptorch(poptorch.__version__, poptorch.__file__)


def test_another_poptorch_is_refused_with_its_place():
    with pytest.raises(
        ImportError, match=r"poptorch 3\.3\.0 in /opt/poptorch/__init__\.py is in use"
    ):
        require_own_poptorch("3.3.0", "/opt/poptorch/__init__.py")

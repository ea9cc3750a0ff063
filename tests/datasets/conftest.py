"""A few hundred real molecules of QM9, the odd ones included."""

import importlib.util
import os

import pytest
from _odd_molecules import FIRST_ROWS, OUT_OF_ORDER, REARRANGED, ZWITTERION

from torchkiln.datasets.qm9._arrays import build_arrays
from torchkiln.datasets.qm9._source import PARTS, find_source


@pytest.fixture(scope="session")
def qm9_tables(tmp_path_factory):
    """A folder with short tables, in the form of those of qm9pack."""
    if importlib.util.find_spec("qm9pack") is None:
        pytest.skip("needs qm9pack, the source of QM9 (pip install qm9pack)")
    wanted = {f'"dsgdb9nsd_{index:06}' for index in (*OUT_OF_ORDER, *REARRANGED, ZWITTERION)}
    folder = tmp_path_factory.mktemp("tables")
    for name in PARTS:
        with (find_source() / name).open() as whole, (folder / name).open("w") as short:
            for number, row in enumerate(whole):
                if number <= FIRST_ROWS[name] or row[:17] in wanted:
                    short.write(row)
    return folder


@pytest.fixture(scope="session")
def molecules(qm9_tables):
    return build_arrays(qm9_tables)


@pytest.fixture(autouse=True)
def _own_data_dir(_same_start, tmp_path):
    """What is cached by a test goes with it."""
    os.environ["TORCHKILN_DATA_DIR"] = str(tmp_path / "data_dir")

"""Real molecules for tests of batches."""

from __future__ import annotations

import importlib.util
from itertools import islice

import pytest

NUM_MOLECULES = 60


@pytest.fixture(scope="session")
def molecules(tmp_path_factory):
    """Graphs from the middle of QM9, with `y` cut to one scaled target each."""
    if importlib.util.find_spec("qm9pack") is None:
        pytest.skip("needs qm9pack, the source of QM9 (pip install qm9pack)")
    from torch_geometric.data import Data
    from torch_geometric.data.separate import separate

    from torchkiln.datasets.qm9._arrays import build_arrays
    from torchkiln.datasets.qm9._pyg import collated
    from torchkiln.datasets.qm9._source import PARTS, find_source

    folder = tmp_path_factory.mktemp("qm9_rows")
    for name in PARTS:
        with (find_source() / name).open() as table:
            (folder / name).write_text("".join(islice(table, NUM_MOLECULES // len(PARTS) + 1)))
    values, slices = collated(build_arrays(folder))
    values["y"] = values["y"][:, 4] / 10  # the gap, near 1
    whole = Data(**values)
    return [
        separate(Data, whole, index, slices, decrement=False)
        for index in range(len(slices["y"]) - 1)
    ]

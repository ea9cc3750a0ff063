import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from torchkiln import Options
from torchkiln.core import OptionsError
from torchkiln.graphs import FixedSizeLoader

WITHOUT_PYG = """
import sys
import numpy as np
from torchkiln.datasets import Molecules, molecule_store
from torchkiln.graphs import FixedSizeLoader
molecules = Molecules(np.array([0, 2, 5]), np.array([1, 1, 8, 1, 1]), np.eye(5, 3), source="test")
store = molecule_store(molecules, k=3, cutoff_angstrom=4.0)
for batch in FixedSizeLoader(store, batch_size=1, as_tensors=True):
    assert batch.z.shape == batch.batch.shape
print("torch_geometric" in sys.modules)
"""


def graphs(count=9):
    random = torch.Generator().manual_seed(0)
    return [
        Data(
            x=torch.randn(n, 3, generator=random),
            edge_index=torch.randint(0, n, (2, 2 * n), generator=random),
            y=torch.randn(1, generator=random),
            name=f"graph {n}",
        )
        for n in range(2, 2 + count)
    ]


@pytest.mark.parametrize("iterations", [1, 2], ids=["single", "combined"])
def test_tensors_are_those_of_the_pyg_batch(iterations):
    options = Options(device_iterations=iterations)
    loaders = [
        FixedSizeLoader(graphs(), batch_size=3, options=options, as_tensors=as_tensors)
        for as_tensors in (False, True)
    ]
    for whole, tensors in zip(*loaders, strict=True):
        expected = {key: value for key, value in whole.to_dict().items() if torch.is_tensor(value)}
        assert set(tensors) == set(expected)
        for key, value in expected.items():
            assert torch.equal(tensors[key], value)
            assert getattr(tensors, key) is tensors[key]


def test_clone_has_memory_of_its_own():
    batch = next(iter(FixedSizeLoader(graphs(), batch_size=3, as_tensors=True)))
    kept = batch.clone()
    before = kept.x.clone()
    batch.x.zero_()
    assert torch.equal(kept.x, before)


def test_batches_can_be_copied_and_sent():
    batch = next(iter(FixedSizeLoader(graphs(), batch_size=3, as_tensors=True)))
    for other in (copy.copy(batch), pickle.loads(pickle.dumps(batch))):
        assert torch.equal(other.x, batch.x)
    with pytest.raises(AttributeError, match="no tensor 'nonsense'"):
        batch.nonsense  # noqa: B018 - the access is the test


def test_graphs_of_several_kinds_are_refused():
    data = HeteroData()
    data["atom"].x = torch.zeros(2, 1)
    data["atom", "bond", "atom"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(OptionsError, match="graphs of one kind"):
        FixedSizeLoader([data], batch_size=1, as_tensors=True)


def test_nothing_of_pyg_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYG], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"

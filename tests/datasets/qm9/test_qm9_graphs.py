"""QM9 as graphs: what PyG's class reads, without its pickles."""

import pickle

import pytest
import torch
from torch_geometric.datasets import QM9

from torchkiln.datasets import qm9_graphs, write_qm9_root
from torchkiln.graphs import FixedSizeLoader


def test_graphs_are_those_of_pygs_class(qm9_tables, tmp_path):
    graphs = qm9_graphs(qm9_tables, progress=False)
    theirs = QM9(str(write_qm9_root(tmp_path, source=qm9_tables, progress=False)))
    assert len(graphs) == len(theirs)
    for index in (0, 1, 7, len(graphs) - 1):
        ours = graphs[index].to_dict()
        expected = {key: value for key, value in theirs[index].to_dict().items() if key != "name"}
        assert ours.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(ours[key], value, rtol=0, atol=0)


def test_batches_have_a_row_of_targets_for_each_graph(qm9_tables):
    graphs = qm9_graphs(qm9_tables, limit=20, progress=False)
    assert len(graphs) == 20
    batch = next(iter(FixedSizeLoader(graphs, num_nodes=64)))
    assert batch.y.shape == (batch.num_graphs, 19)
    assert batch.x.shape[1] == 11


def test_nothing_is_unpickled(qm9_tables, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    assert len(qm9_graphs(qm9_tables, limit=3, progress=False)) == 3


def test_pygs_class_runs_what_is_in_a_foreign_file(qm9_tables, tmp_path):
    """The reason for this reader; if PyG ever refuses, the documents may say so."""

    class Surprise:
        def __reduce__(self):
            return (exec, ("raise SystemExit('the file was executed')",))

    root = write_qm9_root(tmp_path, source=qm9_tables, limit=3, progress=False)
    torch.save(({}, {}, Surprise()), root / "processed" / "data_v3.pt")
    with (
        pytest.warns(UserWarning, match="Weights only load failed"),
        pytest.raises(SystemExit, match="executed"),
    ):
        QM9(str(root))

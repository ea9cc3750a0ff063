import sys
import types

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import QM9
from torch_geometric.datasets import qm9 as pyg_module

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets import write_qm9_root
from torchkiln.datasets.qm9 import _root as module

LIMIT = 300
RAW = ["raw/gdb9.sdf", "raw/gdb9.sdf.csv", "raw/uncharacterized.txt", "raw/qm9_v3.pt"]
ALL = [*RAW, "processed/data_v3.pt", "processed/pre_transform.pt", "processed/pre_filter.pt"]
TENSORS = ["x", "edge_index", "edge_attr", "y", "pos", "idx", "z"]


@pytest.fixture(autouse=True)
def _no_download(monkeypatch):
    def refuse(url, *args, **kwargs):
        raise AssertionError(f"tried to download {url}")

    monkeypatch.setattr(pyg_module, "download_url", refuse)


@pytest.fixture
def without_rdkit(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)  # importing it fails


@pytest.fixture
def root(qm9_tables, tmp_path):
    return write_qm9_root(tmp_path / "QM9", source=qm9_tables, limit=LIMIT, progress=False)


def rewrite(root, qm9_tables, **options):
    """Call again and return what is said, and which files were written."""
    before = {name: stamp(root / name) for name in ALL}
    said = []
    options = {"limit": LIMIT, "progress": False, **options}
    write_qm9_root(root, source=qm9_tables, say=said.append, **options)
    written = [name for name in ALL if stamp(root / name) != before[name]]
    return "\n".join(said), written


def stamp(path):
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def assert_same_graphs(one, other):
    assert len(one) == len(other)
    assert one._data["name"] == other._data["name"]
    for name in TENSORS:
        assert one._data[name].dtype == other._data[name].dtype
        assert torch.equal(one._data[name], other._data[name])
        assert torch.equal(one.slices[name], other.slices[name])


def test_the_class_opens_the_folder(root, without_rdkit):
    dataset = QM9(str(root))
    assert len(dataset) == LIMIT
    assert str(dataset[2]) == (
        "Data(x=[3, 11], edge_index=[2, 4], edge_attr=[4, 4], y=[1, 19], pos=[3, 3], idx=[1], "
        "name='gdb_3', z=[3])"
    )
    assert dataset[2].idx.item() == 2


def test_methane_has_pygs_features(root, without_rdkit):
    methane = QM9(str(root))[0]
    carbon, hydrogen = [0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 4], [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert methane.x.tolist() == [carbon, *[hydrogen] * 4]
    assert methane.edge_index.tolist() == [[0, 0, 0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 0, 0, 0, 0]]
    assert methane.edge_attr.tolist() == [[1, 0, 0, 0]] * 8


def test_multiple_bonds_have_their_own_types(root, without_rdkit):
    acetylene = QM9(str(root))[3]
    types_of = {
        tuple(edge): attr.index(1)
        for edge, attr in zip(
            acetylene.edge_index.t().tolist(), acetylene.edge_attr.tolist(), strict=True
        )
    }
    assert types_of[0, 1] == types_of[1, 0] == 2
    assert sorted(types_of.values()) == [0, 0, 0, 0, 2, 2]


def test_the_raw_file_gives_what_is_processed(root, without_rdkit):
    processed = QM9(str(root))
    assert_same_graphs(QM9(str(root), force_reload=True), processed)
    assert list(QM9(str(root))[0].keys()) == list(processed[0].keys())


def test_a_pre_transform_without_reload_warns(root, without_rdkit):
    with pytest.warns(UserWarning, match="pre_transform"):
        QM9(str(root), pre_transform=len)


def keep_positions(data):
    return Data(pos=data.pos, idx=data.idx)


def test_a_pre_transform_is_applied_to_the_raw_file(root, without_rdkit):
    dataset = QM9(str(root), pre_transform=keep_positions, force_reload=True)
    assert str(dataset[0]) == "Data(pos=[5, 3], idx=[1])"


def test_with_rdkit_present_nothing_is_downloaded(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", types.ModuleType("rdkit"))
    dataset = QM9(str(root))
    assert dataset.raw_file_names == ["gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"]
    assert len(dataset) == LIMIT


def test_rdkit_reads_the_same_graphs_from_the_sdf(root):
    pytest.importorskip("rdkit", reason="needs RDKit (pip install rdkit) to read gdb9.sdf")
    processed = QM9(str(root))
    assert_same_graphs(QM9(str(root), force_reload=True), processed)


def test_a_second_call_verifies_and_keeps_everything(root, qm9_tables):
    said, written = rewrite(root, qm9_tables)
    assert written == []
    assert "everything is in place" in said


def test_force_writes_everything_anew(root, qm9_tables):
    assert rewrite(root, qm9_tables, force=True)[1] == ALL


def test_files_are_the_same_every_time(root, qm9_tables):
    before = {name: (root / name).read_bytes() for name in ALL}
    rewrite(root, qm9_tables, force=True)
    assert [name for name in ALL if (root / name).read_bytes() != before[name]] == []


@pytest.mark.parametrize("name", RAW)
def test_a_damaged_raw_file_is_written_anew(root, qm9_tables, name):
    content = (root / name).read_bytes()
    (root / name).write_bytes(content[:-10])
    said, written = rewrite(root, qm9_tables)
    assert written == [name]
    assert "is damaged" in said
    assert (root / name).read_bytes() == content


def test_what_pyg_processed_itself_is_kept(root, qm9_tables, without_rdkit):
    QM9(str(root), pre_transform=keep_positions, force_reload=True)
    said, written = rewrite(root, qm9_tables)
    assert written == []
    assert "data_v3.pt was changed since" in said


def test_another_limit_writes_everything_anew(root, qm9_tables, without_rdkit):
    assert rewrite(root, qm9_tables, limit=10)[1] == ALL
    assert len(QM9(str(root))) == 10


def test_an_interrupted_call_goes_on_where_it_was(qm9_tables, tmp_path, monkeypatch):
    def fail(arrays, path):
        path.write_bytes(b"half of a file")
        raise KeyboardInterrupt

    root = tmp_path / "QM9"
    with monkeypatch.context() as patch:
        patch.setitem(module._WRITERS, "raw/qm9_v3.pt", fail)
        with pytest.raises(KeyboardInterrupt):
            write_qm9_root(root, source=qm9_tables, limit=LIMIT, progress=False)
    assert not (root / "raw/qm9_v3.pt").exists()
    assert not list((root / "raw").glob(".*.tmp"))
    said, written = rewrite(root, qm9_tables)
    assert written == ALL[3:]
    assert "gdb9.sdf is there and unchanged" in said


def test_files_from_elsewhere_are_not_overwritten(qm9_tables, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/gdb9.sdf").write_text("downloaded")
    with pytest.raises(StoreError, match=r"gdb9.sdf was not written by torchkiln.*--force"):
        write_qm9_root(tmp_path, source=qm9_tables)
    assert (tmp_path / "raw/gdb9.sdf").read_text() == "downloaded"
    write_qm9_root(tmp_path, source=qm9_tables, limit=5, force=True, progress=False)
    assert (tmp_path / "raw/gdb9.sdf").read_text().startswith("gdb_1\n")


def test_a_damaged_record_of_files_names_the_remedy(root, qm9_tables):
    (root / "torchkiln-qm9.json").write_text("{}")
    with pytest.raises(StoreError, match="--force"):
        rewrite(root, qm9_tables)


def test_a_limit_below_one_is_refused(qm9_tables, tmp_path):
    with pytest.raises(OptionsError, match="at least 1, got 0"):
        write_qm9_root(tmp_path, source=qm9_tables, limit=0)


def test_qm9_is_not_written_over_a_file(tmp_path):
    target = tmp_path / "notes.txt"
    target.write_text("precious")
    (tmp_path / "source").mkdir()
    with pytest.raises(StoreError, match=r"notes\.txt is a file; choose a directory"):
        write_qm9_root(target, source=tmp_path / "source")

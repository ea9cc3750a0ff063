import gzip
import io
import tarfile
import zipfile

import numpy as np
import pytest
from _clusters import energies_of, some_clusters, xyz_text

from torchkiln.core import StoreError
from torchkiln.datasets.water._hydronet_files import find_files, read_file, size_of

# PyG keeps coordinates as float16: half a step below 8 angstrom.
FLOAT16_ANGSTROM = 0.004


def zipped(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return content.getvalue()


def tarred(members):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def npz(pos, energies):
    """The arrays that PyG's HydroNet writes."""
    content = io.BytesIO()
    z = np.tile(np.array([8, 1, 1], dtype=np.int8), (len(pos), pos.shape[1]))
    flat = pos.reshape(len(pos), -1, 3).astype(np.float16)
    y = energies.astype(np.float32)
    np.savez(content, z=z, pos=flat, y=y, num_graphs=len(pos))
    return content.getvalue()


def clusters(size):
    pos = some_clusters(size, size)
    return pos, energies_of(pos)


def text_of(size):
    return xyz_text(*clusters(size)).encode()


FORMS = {
    "W4_geoms_all.xyz": lambda: text_of(4),
    "W4_geoms_all.xyz.gz": lambda: gzip.compress(text_of(4)),
    "W4_geoms_all.zip": lambda: zipped({"W4_geoms_all.xyz": text_of(4), "__MACOSX/._W4.xyz": b"?"}),
    "W4_geoms_all.tar.gz": lambda: tarred({"W4/W4_geoms_all.xyz": text_of(4), "README": b"hello"}),
    "W4_geoms_all.npz": lambda: npz(*clusters(4)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_file_gives_the_same_clusters(tmp_path, name):
    (tmp_path / name).write_bytes(FORMS[name]())
    (frames,) = read_file(tmp_path / name)
    pos, energies = clusters(4)
    tolerance = FLOAT16_ANGSTROM if name.endswith("npz") else 1e-9
    np.testing.assert_allclose(frames.pos.reshape(pos.shape), pos, atol=tolerance)
    np.testing.assert_allclose(frames.energies, energies, atol=1e-5)


@pytest.mark.parametrize("inner", ["W{}_geoms_all.zip", "W{}_geoms_all.xyz", "W{}_geoms_all.npz"])
def test_the_archive_of_all_sizes_is_read_in_the_order_of_sizes(tmp_path, inner):
    make = {
        "zip": lambda size: zipped({f"W{size}_geoms_all.xyz": text_of(size)}),
        "xyz": text_of,
        "npz": lambda size: npz(*clusters(size)),
    }[inner[-3:]]
    folder = "W3-W30_all_geoms_TTM2.1-F"
    members = {f"{folder}/{inner.format(size)}": make(size) for size in (10, 3, 5)}
    path = tmp_path / f"{folder}.zip"
    path.write_bytes(zipped(members))
    assert [frames.num_molecules for frames in read_file(path)] == [3, 5, 10]


def test_files_are_found_by_size_and_the_best_form_counts(tmp_path):
    for name in ("raw/W10_geoms_all.zip", "raw/W3_geoms_all.zip", "processed/W3_geoms_all.npz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("processed/W12_geoms_all.npz", "W3-W30_all_geoms_TTM2.1-F.zip", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in find_files(tmp_path)] == [
        "raw/W3_geoms_all.zip",
        "raw/W10_geoms_all.zip",
        "processed/W12_geoms_all.npz",
    ]


def test_without_files_of_one_size_archives_count(tmp_path):
    for name in ("W3-W30_pyg_processed.zip", "hydronet_splits.zip"):
        (tmp_path / name).touch()
    assert [path.name for path in find_files(tmp_path)] == ["W3-W30_pyg_processed.zip"]
    (tmp_path / "W3_W30_all_geoms_TTM2.1-F.zip").touch()
    assert [path.name for path in find_files(tmp_path)] == ["W3_W30_all_geoms_TTM2.1-F.zip"]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("W3_geoms_all.zip", 3),
        ("folder/w25.xyz", 25),
        ("W3-W30_all_geoms_TTM2.1-F.zip", None),
        ("W3_W30_all_geoms_TTM2.1-F.zip", None),
        ("water.xyz", None),
    ],
)
def test_the_name_tells_the_size(name, size):
    assert size_of(name) == size


def test_a_folder_without_clusters_says_what_belongs_there(tmp_path):
    (tmp_path / "hydronet_splits.zip").touch()
    with pytest.raises(StoreError, match="holds no water clusters; expected are W3_geoms"):
        find_files(tmp_path)
    with pytest.raises(StoreError, match="nowhere does not exist"):
        find_files(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [name for name in FORMS if not name.endswith("xyz")])
@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
def test_a_damaged_archive_is_named(tmp_path, name, damage):
    content = FORMS[name]()
    middle = len(content) // 2
    changed = bytes(byte ^ 0x5A for byte in content[middle : middle + 64])
    damaged = {
        "cut": content[:middle],
        "changed": content[:middle] + changed + content[middle + 64 :],
        "emptied": b"",
    }
    (tmp_path / name).write_bytes(damaged[damage])
    with pytest.raises(StoreError, match=name):
        list(read_file(tmp_path / name))


def test_an_archive_without_clusters_is_named(tmp_path):
    (tmp_path / "water.zip").write_bytes(zipped({"README": b"none"}))
    with pytest.raises(StoreError, match=r"water.zip holds no water clusters"):
        list(read_file(tmp_path / "water.zip"))


def test_a_line_within_an_archive_is_named(tmp_path):
    text = text_of(4).replace(b"O ", b"X ", 1)
    (tmp_path / "W4.zip").write_bytes(zipped({"W4.xyz": text}))
    with pytest.raises(StoreError, match=r"W4.zip/W4.xyz, line 3: expected an atom"):
        list(read_file(tmp_path / "W4.zip"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z": np.ones((4, 12), np.int8)}, "cluster 0 has other atoms than water"),
        ({"y": np.array([1, 2, np.nan, 4], np.float32)}, "cluster 2 has .* not finite"),
        ({"pos": np.zeros((4, 11, 3), np.float16)}, r"pos \[4, 11, 3\]"),
        ({"y": None}, "z, pos and y"),
    ],
)
def test_arrays_that_are_no_clusters_are_refused(tmp_path, change, message):
    arrays = dict(np.load(io.BytesIO(npz(*clusters(4)))))
    arrays = {key: value for key, value in (arrays | change).items() if value is not None}
    np.savez(tmp_path / "W4_geoms_all.npz", **arrays)
    with pytest.raises(StoreError, match=message):
        list(read_file(tmp_path / "W4_geoms_all.npz"))


def test_pyg_reads_the_same_from_the_same_files(tmp_path):
    pytest.importorskip("pandas", reason="PyG reads xyz text of HydroNet with pandas")
    from torch_geometric.datasets.hydro_net import Partition

    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "W4_geoms_all.zip").write_bytes(zipped({"W4_geoms_all.xyz": text_of(4)}))
    theirs = Partition(str(tmp_path), "W4_geoms_all")  # writes processed/W4_geoms_all.npz
    (ours,) = read_file(tmp_path / "raw" / "W4_geoms_all.zip")
    (npz_form,) = read_file(tmp_path / "processed" / "W4_geoms_all.npz")
    assert len(theirs) == len(ours) == len(npz_form) == 4
    for number, graph in enumerate(theirs):
        assert graph.z.tolist() == ours.z[number].tolist()
        assert graph.y.item() == pytest.approx(ours.energies[number], rel=1e-6)
        np.testing.assert_allclose(graph.pos.numpy(), ours.pos[number], atol=FLOAT16_ANGSTROM)
        np.testing.assert_array_equal(graph.pos.numpy(), npz_form.pos[number])

import io
import zipfile

import numpy as np
import pytest

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets.water._hydronet_splits import read_split_file


@pytest.mark.parametrize("place", ["split_00_small.npz", "processed/split_00_small.npz", "zip"])
@pytest.mark.parametrize("name", ["split_00_small.npz", "elsewhere/split_00_small.npz"])
def test_a_split_file_is_found_below_the_root(tmp_path, place, name):
    content = io.BytesIO()
    np.savez(content, train_idx=np.array([4, 0, 2]), val_idx=np.array([3]))
    if place == "zip":
        with zipfile.ZipFile(tmp_path / "hydronet_splits.zip", "w") as archive:
            archive.writestr("splits/split_00_small.npz", content.getvalue())
    else:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(content.getvalue())
    splits = read_split_file(name, tmp_path)
    assert {name: part.tolist() for name, part in splits.items()} == {
        "train": [0, 2, 4],
        "validation": [3],
        "test": [],
    }


def test_a_missing_split_file_is_named(tmp_path):
    with pytest.raises(OptionsError, match=f"no split file split_07.npz below {tmp_path}"):
        read_split_file("split_07.npz", tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"val_idx": [1]}, "names no clusters for training; it has val_idx"),
        ({"train_idx": [1, 2], "val_idx": [2]}, "names a cluster in two parts"),
        ({"train_idx": [1, -2]}, "negative number"),
    ],
)
def test_senseless_splits_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "split.npz", **arrays)
    with pytest.raises(StoreError, match=message):
        read_split_file(tmp_path / "split.npz", None)


def test_a_damaged_split_file_is_named(tmp_path):
    (tmp_path / "split.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(StoreError, match=r"split.npz cannot be read as a split file"):
        read_split_file(tmp_path / "split.npz", None)


def test_a_damaged_archive_of_splits_is_named(tmp_path):
    (tmp_path / "hydronet_splits.zip").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(StoreError, match=r"hydronet_splits.zip cannot be read"):
        read_split_file("split_00_small.npz", tmp_path)

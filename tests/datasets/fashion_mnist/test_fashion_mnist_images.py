import struct

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from torchkiln.core import StoreError
from torchkiln.datasets.fashion_mnist import _files, load_fashion_mnist

# Published figures of the 60,000 training images, with pixels from 0 to 1.
MEAN, DEVIATION = 0.2860, 0.3530


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("place", [".", "FashionMNIST/raw"], ids=["folder", "torchvision"])
def test_images_and_labels_are_those_of_the_files(write_files, tmp_path, place, packed):
    arrays = write_files(tmp_path / place, packed=packed)
    for train, part in ((True, "train"), (False, "t10k")):
        dataset = load_fashion_mnist(tmp_path, train=train)
        pixels, labels = (arrays[f"{part}-{kind}-ubyte"] for kind in ("images-idx3", "labels-idx1"))
        assert len(dataset) == len(labels)
        np.testing.assert_array_equal(dataset.labels, labels)
        np.testing.assert_allclose(dataset.images[:, 0], pixels / 127.5 - 1, atol=1e-6)


def test_debians_folder_is_looked_at_by_default(write_files, tmp_path, monkeypatch):
    write_files(tmp_path, packed=True)
    monkeypatch.setattr(_files, "_DEBIAN", tmp_path)
    assert len(load_fashion_mnist(train=False)) == 20


def test_a_loader_of_torch_gets_batches(write_files, tmp_path):
    write_files(tmp_path)
    dataset = load_fashion_mnist(str(tmp_path), transform=lambda image: image.flip(2))
    images, labels = next(iter(DataLoader(dataset, batch_size=8)))
    torch.testing.assert_close(images, dataset.images[:8].flip(3))
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert repr(dataset) == "ImageSet(40 images, 28 x 28, 10 classes)"


def test_a_missing_file_is_told_in_one_line_with_what_to_put_where(write_files, tmp_path):
    write_files(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    with pytest.raises(StoreError) as caught:
        load_fashion_mnist(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for words in (str(tmp_path), "dataset-fashion-mnist", "root", *_files.FILES):
        assert words in message


def cut(content):
    return content[:-1]


def lengthened(content):
    return content + b"\0"


def other_kind(content):
    return struct.pack(">I", 2050) + content[4:]


def strange_label(content):
    return content[:-2] + bytes([200, 1])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut, "is truncated: it holds 47 bytes instead of 48"),
        (lengthened, "is too long: it holds more than the 48"),
        (other_kind, r"begins with \[2050, 40\] instead of \[2049, 40\]"),
        (strange_label, "has label 200 at 38"),
        (lambda content: b"", r"begins with \[\]"),
    ],
    ids=["cut", "lengthened", "other_kind", "strange_label", "empty"],
)
def test_a_damaged_file_is_named_with_its_fault(write_files, tmp_path, spoil, words):
    write_files(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(StoreError, match=f"{path.name} {words}.*copy it again"):
        load_fashion_mnist(tmp_path)


def test_a_truncated_gz_is_damaged(write_files, tmp_path):
    write_files(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match=r"ubyte\.gz is damaged"):
        load_fashion_mnist(tmp_path)


@pytest.mark.skipif(
    not _files._DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed"
)
def test_the_real_images_have_the_published_mean_and_deviation():
    dataset = load_fashion_mnist()
    pixels = (dataset.images + 1) / 2
    assert dataset.labels.bincount().tolist() == [6000] * 10
    assert pixels.mean().item() == pytest.approx(MEAN, abs=1e-4)
    assert pixels.std().item() == pytest.approx(DEVIATION, abs=1e-4)

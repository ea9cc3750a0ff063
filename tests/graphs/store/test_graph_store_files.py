"""A store in a directory is complete, or it is not there."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from _stored_graphs import rich_graphs

from torchkiln.core import StoreError
from torchkiln.graphs.store._store import GraphStore


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "store"
    GraphStore.build(rich_graphs(), path, progress=False)
    return path


def column(directory: Path, key: str) -> Path:
    (path,) = directory.glob(f"*-{key}.npy")
    return path


def test_columns_are_plain_npy_files(directory):
    x = np.load(column(directory, "x"))
    assert x.dtype == np.float32
    assert np.array_equal(x, np.concatenate([graph.x.numpy() for graph in rich_graphs()]))
    edges = np.load(column(directory, "edge_index"))
    assert edges.shape == (2, sum(graph.num_edges for graph in rich_graphs()))


def test_a_sound_store_passes_verification(directory):
    assert len(GraphStore.open(directory, verify=True)) == 12


def test_nothing_temporary_is_left(directory):
    assert [path.name for path in directory.parent.iterdir()] == ["store"]
    assert all(path.suffix in (".npy", ".json") for path in directory.iterdir())


def test_an_existing_store_is_kept_unless_told_otherwise(directory):
    with pytest.raises(StoreError, match="overwrite=True"):
        GraphStore.build(rich_graphs(3), directory, progress=False)
    assert len(GraphStore.open(directory)) == 12
    assert len(GraphStore.build(rich_graphs(3), directory, overwrite=True, progress=False)) == 3


def test_a_store_can_replace_itself(directory):
    store = GraphStore.open(directory)
    assert len(store[[1, 2]].save(directory, overwrite=True)) == 2


def test_a_foreign_directory_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(StoreError, match="not a graph store"):
        GraphStore.build(rich_graphs(), tmp_path, overwrite=True, progress=False)
    assert (tmp_path / "thesis.txt").exists()


def test_a_failed_build_leaves_nothing(tmp_path):
    def graphs():
        yield from rich_graphs()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        GraphStore.build(graphs(), tmp_path / "store", progress=False)
    assert list(tmp_path.iterdir()) == []


def build_until_killed(directory):
    def graphs():
        yield from rich_graphs()
        os.kill(os.getpid(), signal.SIGKILL)

    GraphStore.build(graphs(), directory, progress=False)


def test_a_killed_build_leaves_nothing_that_opens(tmp_path):
    directory = tmp_path / "store"
    process = multiprocessing.get_context("fork").Process(
        target=build_until_killed, args=(directory,)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not directory.exists()
    (left,) = tmp_path.iterdir()
    with pytest.raises(StoreError, match="not a graph store"):
        GraphStore.open(left)
    assert len(GraphStore.build(rich_graphs(), directory, progress=False)) == 12


def test_a_truncated_column_is_found_at_once(directory):
    path = column(directory, "x")
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(StoreError, match=r"-x.npy has \d+ bytes instead of"):
        GraphStore.open(directory)


def test_a_missing_column_is_found_at_once(directory):
    column(directory, "x").unlink()
    with pytest.raises(StoreError, match=r"-x.npy is missing"):
        GraphStore.open(directory)


def test_a_flipped_bit_is_found_by_verification(directory):
    path = column(directory, "x")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"-x.npy is damaged.*build the store again"):
        GraphStore.open(directory, verify=True)


def test_a_column_of_another_shape_is_found(directory):
    path = column(directory, "x")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(45, 5)", b"(5, 45)"))
    with pytest.raises(StoreError, match="contradict"):
        GraphStore.open(directory)


def test_offsets_that_lead_outside_are_found_without_verification(directory):
    path = next(directory.glob("offsets-*-nodes.npy"))
    content = bytearray(path.read_bytes())
    content[-16:-8] = (10**9).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(StoreError, match="contradict"):
        GraphStore.open(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header | {"num_graphs": 3}, "checksum is wrong"),
        (lambda header: header | {"version": 99}, "has version 99"),
        (lambda header: {"format": "something else"}, "does not belong to a graph store"),
        (lambda header: [], "does not belong to a graph store"),
    ],
)
def test_a_changed_header_is_refused(directory, change, message):
    path = directory / "store.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(StoreError, match=message):
        GraphStore.open(directory)


def test_half_a_header_is_refused(directory):
    path = directory / "store.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(StoreError, match=r"store\.json is damaged"):
        GraphStore.open(directory)


def test_a_place_without_a_store(tmp_path):
    with pytest.raises(StoreError, match=r"has no store\.json"):
        GraphStore.open(tmp_path / "nowhere")

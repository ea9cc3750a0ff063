"""What stands where a store is to be written is replaced only if it is a store, and on demand."""

from __future__ import annotations

import pytest
from _stored_graphs import rich_graphs

from torchkiln.core import StoreError
from torchkiln.graphs.store._store import GraphStore


def test_a_file_is_never_replaced_by_a_store(tmp_path):
    target = tmp_path / "notes.txt"
    target.write_text("precious")
    with pytest.raises(StoreError, match=r"notes\.txt is a file, so it is not replaced; choose"):
        GraphStore.build(rich_graphs(8), target, overwrite=True, progress=False)
    assert target.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write below .*file.*choose another directory"):
        GraphStore.build(rich_graphs(8), tmp_path / "file" / "store", progress=False)


def test_an_empty_selection_is_not_saved(tmp_path):
    store = GraphStore.from_dataset(rich_graphs(8), progress=False)
    with pytest.raises(StoreError, match="no graph to write"):
        store[[]].save(tmp_path / "store")
    assert not list(tmp_path.iterdir())


def test_a_store_that_appeared_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "store"

    def graphs():
        yield from rich_graphs(8)
        GraphStore.build(rich_graphs(8)[:3], target, progress=False)

    with pytest.raises(StoreError, match=r"another process wrote .* meanwhile"):
        GraphStore.build(graphs(), target, progress=False)
    assert len(GraphStore.open(target, verify=True)) == 3
    assert list(tmp_path.iterdir()) == [target]
    assert len(GraphStore.build(rich_graphs(8), target, overwrite=True, progress=False)) == 8

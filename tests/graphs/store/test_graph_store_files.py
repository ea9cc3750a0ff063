"""A store in a directory is complete, or it is not there."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from _stored_graphs import assert_same_graph, rich_graphs

from torchkiln.core import StoreError, clean_leftovers, is_temporary
from torchkiln.graphs.store import _store_opening
from torchkiln.graphs.store._store import GraphStore
from torchkiln.graphs.store._store_files import _digest


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
    assert is_temporary(left)
    with pytest.raises(StoreError, match="not a graph store"):
        GraphStore.open(left)
    clean_leftovers(tmp_path)  # what the next process does before it writes there
    assert list(tmp_path.iterdir()) == []
    assert len(GraphStore.build(rich_graphs(), directory, progress=False)) == 12


def killed_after(calls, directory):
    """Replace a store and be killed after so many renames."""
    rename, left = Path.rename, [calls]

    def counted(self, target):
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return rename(self, target)

    Path.rename = counted
    shutil.rmtree = lambda *_, **__: None  # nor does it get so far as to clean up
    GraphStore.from_dataset(rich_graphs(3), progress=False).save(directory, overwrite=True)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("renames", "graphs"), [(0, 12), (1, 12), (2, 3)])
@pytest.mark.parametrize("again", ["open", "build"])
def test_a_store_is_never_lost_when_replacing_it_is_killed(directory, renames, graphs, again):
    process = multiprocessing.get_context("fork").Process(
        target=killed_after, args=(renames, directory)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    clean_leftovers(directory.parent)
    if again == "open":
        assert len(GraphStore.open(directory, verify=True)) == graphs
    else:
        with pytest.raises(StoreError, match="exists already"):
            GraphStore.build(rich_graphs(), directory, progress=False)
        assert len(GraphStore.build(rich_graphs(5), directory, overwrite=True, progress=False)) == 5
    assert [path.name for path in directory.parent.iterdir()] == ["store"]


@pytest.fixture
def aside(directory):
    """A store whose replacement was killed between the two renames."""
    return directory.rename(directory.with_name(".store.torchkiln-old"))


def fail_after_one():
    yield rich_graphs(1)[0]
    raise RuntimeError("the dataset fails")


def test_a_store_that_was_set_aside_outlives_an_empty_folder_in_its_place(directory, aside):
    directory.mkdir()  # what scripts do before they write
    with pytest.raises(RuntimeError, match="the dataset fails"):
        GraphStore.build(fail_after_one(), directory, overwrite=True, progress=False)
    assert len(GraphStore.open(directory)) == 12
    assert not aside.exists()


@pytest.mark.parametrize(
    "use",
    [GraphStore.open, lambda path: GraphStore.build(rich_graphs(), path, overwrite=True)],
    ids=["open", "build"],
)
def test_a_store_that_was_set_aside_stays_beside_files_of_the_user(directory, aside, use):
    directory.mkdir()
    (directory / "log.txt").write_text("the user's")
    with pytest.raises(StoreError, match="not a graph store"):
        use(directory)
    assert [path.name for path in directory.iterdir()] == ["log.txt"]
    assert len(GraphStore.open(aside)) == 12


def test_files_that_come_while_a_store_is_built_are_kept(directory):
    def graphs():
        yield from rich_graphs(3)
        shutil.rmtree(directory)
        directory.mkdir()
        (directory / "log.txt").write_text("the user's")

    with pytest.raises(StoreError, match="meanwhile"):
        GraphStore.build(graphs(), directory, overwrite=True, progress=False)
    assert [path.name for path in directory.iterdir()] == ["log.txt"]


def test_a_store_that_was_set_aside_is_found_through_a_link(directory, aside, tmp_path):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link"
    link.symlink_to(directory)
    assert len(GraphStore.open(link)) == 12
    assert not aside.exists()


def test_the_root_of_the_file_system_is_no_place_for_a_store():
    with pytest.raises(StoreError, match="root of the file system; choose"):
        GraphStore.open("/")
    with pytest.raises(StoreError, match="root of the file system; choose"):
        GraphStore.build(rich_graphs(3), "/", overwrite=True, progress=False)


def replace_again_and_again(directory, failures):
    try:
        for count in range(1, 12):
            GraphStore.from_dataset(rich_graphs(2 + count % 3), progress=False).save(
                directory, overwrite=True
            )
    except BaseException as error:
        failures.put(repr(error))


def test_a_store_can_be_opened_while_others_replace_it(directory):
    context = multiprocessing.get_context("fork")
    failures = context.Queue()
    processes = [
        context.Process(target=replace_again_and_again, args=(directory, failures)) for _ in "ab"
    ]
    for process in processes:
        process.start()
    opened = []
    while any(process.is_alive() for process in processes):
        opened.append(len(GraphStore.open(directory)))
    for process in processes:
        process.join()
    assert [failures.get() for _ in range(failures.qsize())] == []
    assert set(opened) <= {12, 2, 3, 4}
    assert [path.name for path in directory.parent.iterdir()] == ["store"]


def test_a_new_store_follows_the_umask_which_stays_as_it_is(tmp_path, monkeypatch):
    def forbidden(_mask):
        raise AssertionError("the umask belongs to the whole process")

    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", forbidden)
        GraphStore.build(rich_graphs(3), tmp_path / "store", progress=False)
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "store").iterdir()} == {0o640}


def test_what_a_link_leads_to_is_replaced(directory, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(directory)
    assert len(GraphStore.build(rich_graphs(3), link, overwrite=True, progress=False)) == 3
    assert link.is_symlink()
    assert len(GraphStore.open(directory)) == 3


def test_a_truncated_column_is_found_at_once(directory):
    path = column(directory, "x")
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(StoreError, match=r"-x.npy has \d+ bytes instead of"):
        GraphStore.open(directory)


def test_a_missing_column_is_found_at_once(directory):
    column(directory, "x").unlink()
    with pytest.raises(StoreError, match=r"-x.npy is missing"):
        GraphStore.open(directory)


def flip_last_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_is_found_by_verification(directory):
    flip_last_bit(column(directory, "x"))
    with pytest.raises(StoreError, match=r"-x.npy is damaged.*build the store again"):
        GraphStore.open(directory, verify=True)
    store = GraphStore.open(directory)
    with pytest.raises(StoreError, match=r"-x.npy is damaged.*build the store again"):
        store[-1]


def make_earlier(directory, version):
    """Turn a store into one of an earlier version: a checksum for each whole file."""
    path = directory / "store.json"
    header = json.loads(path.read_text())
    if version == 1:
        (directory / "checksums.npy").unlink()
        del header["files"]["checksums.npy"]
    for name, facts in header["files"].items():
        facts["sha256"] = hashlib.sha256((directory / name).read_bytes()).hexdigest()
    header["version"] = version
    header["digest"] = _digest(header)
    path.write_text(json.dumps(header))


@pytest.mark.parametrize("version", [1, 2])
def test_stores_of_earlier_versions_are_verified_whole_with_a_warning(directory, version):
    make_earlier(directory, version)
    with pytest.warns(UserWarning, match=rf"version {version}.*build the store again"):
        store = GraphStore.open(directory)
    for got, graph in zip(store, rich_graphs(), strict=True):
        assert_same_graph(got, graph)
    flip_last_bit(column(directory, "x"))
    with pytest.raises(StoreError, match=r"-x.npy is damaged.*build the store again"):
        GraphStore.open(directory)


def test_a_deeply_nested_header_is_refused(directory):
    (directory / "store.json").write_text("[" * 10**5)
    with pytest.raises(StoreError, match=r"store\.json is damaged"):
        GraphStore.open(directory)


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
    with pytest.raises(StoreError, match=r"nodes\.npy is damaged"):
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


def test_the_last_of_two_who_replace_a_store_at_once_wins(directory, tmp_path_factory, monkeypatch):
    others = [tmp_path_factory.mktemp("other") / "store"]
    GraphStore.from_dataset(rich_graphs(4), progress=False).save(others[0])
    original = Path.rename

    def raced(path, target):
        if path.name == "store" and Path(target) == directory and others:
            # Between the two renames of this process, another one puts its store there.
            original(others.pop(), directory)
        return original(path, target)

    monkeypatch.setattr(Path, "rename", raced)
    GraphStore.from_dataset(rich_graphs(2), progress=False).save(directory, overwrite=True)
    assert not others
    assert len(GraphStore.open(directory)) == 2
    assert [path.name for path in directory.parent.iterdir()] == ["store"]


def test_a_folder_of_others_is_never_replaced_by_a_store(directory, tmp_path):
    place = tmp_path / "notes"
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    with pytest.raises(StoreError):
        GraphStore.from_dataset(rich_graphs(2), progress=False).save(place, overwrite=True)
    assert [path.name for path in place.iterdir()] == ["mine.txt"]


def test_a_store_that_is_gone_for_a_moment_is_waited_for(directory, monkeypatch):
    """Several processes may replace it in turn, and leave no store whenever somebody looks."""
    away = directory.with_name("away")
    directory.rename(away)
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            away.rename(directory)

    monkeypatch.setattr(_store_opening.time, "sleep", pause)
    assert len(GraphStore.open(directory)) == 12
    assert len(pauses) == 3

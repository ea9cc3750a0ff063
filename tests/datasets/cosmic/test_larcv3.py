"""larcv3 files: what was written is read, and what is wrong with a file is said."""

import pickle

import h5py
import numpy as np
import pytest

from torchkiln.core import ArgumentError, StoreError
from torchkiln.datasets.cosmic import CosmicEvent, Larcv3Events, load_cosmic, write_larcv3

WIRES = "Data/sparse2d_sbndwire_group"
LABELS = "Data/sparse2d_sbnd_cosmicseg_group"


def random_event(seed):
    rng = np.random.default_rng(seed)
    # Plane by plane and in the order of the files; plane 1 of some has no pixels at all.
    places = np.flatnonzero(rng.random(3 * 32 * 16) < 0.1)
    places = places[(places // (32 * 16) != 1) | (seed % 2 == 0)]
    return CosmicEvent(
        planes=(places // (32 * 16)).astype(np.uint8),
        ticks=(places % 16).astype(np.int32),
        wires=(places // 16 % 32).astype(np.int32),
        values=rng.random(len(places), np.float32),
        labels=rng.integers(0, 3, len(places), np.uint8),
        height=16,
        width=32,
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "events.h5"
    write_larcv3(path, [random_event(seed) for seed in range(3)])
    return path


def same(ours, theirs):
    arrays = ("planes", "ticks", "wires", "values", "labels")
    return (ours.height, ours.width) == (theirs.height, theirs.width) and all(
        np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in arrays
    )


def test_what_was_written_is_read(file):
    events = Larcv3Events(file)
    assert len(events) == 3
    assert all(same(events[index], random_event(index)) for index in (2, 0, 1))
    assert same(events[-1], random_event(2))
    with pytest.raises(IndexError, match="event 3 of 3"):
        events[3]


def test_files_of_a_folder_follow_each_other(file):
    write_larcv3(file.with_name("more.h5"), [random_event(7)])
    events = Larcv3Events(file.parent)
    assert [entry.num_events for entry in events.files] == [3, 1]
    assert same(events[3], random_event(7))
    assert same(events[2], random_event(2))


def test_events_can_be_handed_to_other_processes(file):
    events = Larcv3Events(file)
    first = events[0]
    copy = pickle.loads(pickle.dumps(events))
    events.close()
    assert same(copy[0], first)
    assert same(events[0], first)


def test_images_come_from_files_too(file):
    image, labels = load_cosmic(file, downsample=2)[0]
    assert image.shape == labels.shape == (3, 8, 16)
    assert image.sum() == pytest.approx(random_event(0).values.sum(), rel=1e-5)


def test_no_events_make_no_file(tmp_path):
    with pytest.raises(ArgumentError, match="no events to write"):
        write_larcv3(tmp_path / "none.h5", [])
    assert not list(tmp_path.iterdir())


def change(table, row, field, value):
    def edit(file):
        content = file[table][:]
        content[field][row] = value
        del file[table]
        file[table] = content

    return edit


def drop_rows(table, number):
    def edit(file):
        content = file[table][:-number]
        del file[table]
        file[table] = content

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (change(f"{WIRES}/extents", 0, "N", 2), "has 2 projections instead of 3"),
        (change(f"{LABELS}/image_meta", 1, "projection_id", 2), r"\[0, 2, 2\] instead of 0, 1, 2"),
        (change(f"{WIRES}/image_meta", 2, "number_of_voxels", 64), "planes of different sizes"),
        (change(f"{LABELS}/voxels", 3, "id", 1), "other pixels in plane 0"),
        (change(f"{LABELS}/voxels", 3, "value", 7), r"labels must be 0, 1 or 2, got .*7"),
    ],
    ids=["projections", "order", "sizes", "pixels", "labels"],
)
def test_events_whose_tables_do_not_fit_are_named(file, edit, words):
    with h5py.File(file, "a") as opened:
        edit(opened)
    events = Larcv3Events(file)
    with pytest.raises(StoreError, match=rf"event 0 of .*events\.h5 .*{words}.*; copy the file"):
        events[0]
    assert same(events[2], random_event(2))


def test_pixels_outside_and_missing_ones_are_named(file):
    with h5py.File(file, "a") as opened:
        change(f"{WIRES}/voxels", 0, "id", 10**6)(opened)
        change(f"{LABELS}/voxels", 0, "id", 10**6)(opened)
        drop_rows(f"{WIRES}/voxels", 5)(opened)
    events = Larcv3Events(file)
    with pytest.raises(StoreError, match="1000000 lies outside of 32 wires x 16 ticks"):
        events[0]
    with pytest.raises(StoreError, match="ends before pixel"):
        events[2]


def test_a_missing_group_and_a_cut_file_are_named(file):
    with h5py.File(file, "a") as opened:
        del opened[LABELS]
    with pytest.raises(StoreError, match="is damaged or no larcv3 file with"):
        Larcv3Events(file)
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(StoreError, match=r"events\.h5 is damaged"):
        Larcv3Events(file)


def test_the_real_events_are_read(real_events):
    assert len(real_events) == 5
    event = real_events[0]
    assert (event.height, event.width) == (1280, 2048)
    # From the file's own tables: 23,223 + 23,171 + 10,084 pixels.
    assert np.bincount(event.planes).tolist() == [23_223, 23_171, 10_084]
    assert np.bincount(event.labels).tolist() == [27_501, 27_937, 1_040]
    assert event.values.min() >= 5
    # The middle plane reads the same drift times as the others, and only its middle wires exist.
    assert (event.wires[event.planes == 2].min(), event.wires[event.planes == 2].max()) == (
        191,
        1856,
    )


def test_real_events_survive_being_written(real_events, tmp_path):
    write_larcv3(tmp_path / "copy.h5", [real_events[4]])
    copy = Larcv3Events(tmp_path / "copy.h5")
    assert same(copy[0], real_events[4])
    source = h5py.File(real_events.files[0].path)
    with h5py.File(tmp_path / "copy.h5") as written, source:
        for group in (WIRES, LABELS):
            for table in ("extents", "image_meta", "voxel_extents", "voxels"):
                ours, theirs = written[f"{group}/{table}"].dtype, source[f"{group}/{table}"].dtype
                assert ours.names == theirs.names

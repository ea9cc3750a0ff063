"""Sparse events become dense images, and loaders get tensors."""

import numpy as np
import pytest
import torch

from torchkiln import DataLoader, Options
from torchkiln.core import OptionsError
from torchkiln.datasets.cosmic import CosmicEvent, CosmicImages, GeneratedEvents, load_cosmic


def make_event(pixels, *, height=8, width=16):
    """An event of (plane, tick, wire, value, label)."""
    planes, ticks, wires, values, labels = np.array(pixels).T
    return CosmicEvent(
        planes=planes.astype(np.uint8),
        ticks=ticks.astype(np.int32),
        wires=wires.astype(np.int32),
        values=values.astype(np.float32),
        labels=labels.astype(np.uint8),
        height=height,
        width=width,
    )


EVENT = make_event([(0, 0, 0, 5, 1), (0, 1, 1, 7, 2), (0, 1, 2, 9, 0), (2, 7, 15, 11, 1)])


def test_each_pixel_goes_to_its_row_and_column():
    image, labels = EVENT.dense()
    assert image.shape == labels.shape == (3, 8, 16)
    assert (image.dtype, labels.dtype) == (np.float32, np.uint8)
    assert {tuple(place): image[tuple(place)] for place in np.argwhere(image).tolist()} == {
        (0, 0, 0): 5,
        (0, 1, 1): 7,
        (0, 1, 2): 9,
        (2, 7, 15): 11,
    }
    assert (labels[0, 0, 0], labels[0, 1, 1], labels[0, 1, 2], labels[2, 7, 15]) == (1, 2, 0, 1)
    assert labels.sum() == 4


@pytest.mark.parametrize(("pooling", "value"), [("sum", 12), ("max", 7)])
def test_squares_pool_signals_and_keep_the_rarest_label(pooling, value):
    image, labels = EVENT.dense(2, pooling=pooling)
    assert image.shape == (3, 4, 8)
    assert (image[0, 0, 0], image[0, 0, 1], image[2, 3, 7]) == (value, 9, 11)
    assert (labels[0, 0, 0], labels[0, 0, 1], labels[2, 3, 7]) == (2, 0, 1)


def test_squares_that_do_not_tile_the_image_are_refused():
    for wrong in (0, 3, 16):
        with pytest.raises(OptionsError, match=f"height 8 and the width 16, got {wrong}; .* 8 do"):
            EVENT.dense(wrong)
    with pytest.raises(OptionsError, match="pooling must be 'sum' or 'max', got 'mean'"):
        EVENT.dense(pooling="mean")


def test_an_event_without_pixels_is_an_empty_image():
    image, labels = make_event(np.empty((0, 5))).dense(4)
    assert image.shape == (3, 2, 4)
    assert not image.any()
    assert not labels.any()


@pytest.mark.parametrize("in_memory", [False, True], ids=["lazy", "in-memory"])
def test_a_loader_gets_batches_of_images_and_labels(in_memory):
    events = [EVENT, make_event([(1, 2, 3, 4, 1)])]
    dataset = CosmicImages(events, downsample=2, in_memory=in_memory)
    images, labels = next(iter(DataLoader(Options(), dataset, batch_size=2)))
    assert images.shape == labels.shape == (2, 3, 4, 8)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.uint8)
    assert (images[1, 1, 1, 1], labels[1, 1, 1, 1]) == (4, 1)


def test_generated_events_are_counted_and_repeat():
    events = GeneratedEvents(3, seed=5)
    assert len(events) == 3
    assert np.array_equal(events[-1].values, events[2].values)
    with pytest.raises(IndexError, match="event 3 of 3"):
        events[3]
    dataset = load_cosmic(num_events=3, seed=5, downsample=16)
    assert len(dataset) == 3
    assert np.array_equal(dataset[1][0].numpy(), events[1].dense(16)[0])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"num_events": 0}, "at least 1, got 0"), ({"num_events": 1, "seed": -1}, "got -1")],
    ids=["none", "seed"],
)
def test_numbers_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(OptionsError, match=words):
        GeneratedEvents(**wrong)


def test_threads_make_the_same_images_in_the_same_order(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    lazy = load_cosmic(num_events=5, seed=3, downsample=64, pooling="max")
    kept = load_cosmic(num_events=5, seed=3, downsample=64, pooling="max", in_memory=True)
    for (image, labels), (kept_image, kept_labels) in zip(lazy, kept, strict=True):
        assert torch.equal(image, kept_image)
        assert torch.equal(labels, kept_labels)
    summed, _ = load_cosmic(num_events=1, seed=3, downsample=64)[0]
    assert (summed >= lazy[0][0]).all()
    assert (summed > lazy[0][0]).any()

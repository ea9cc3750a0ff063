"""Generated events: repeatable, three views of one thing, and like the detector's real ones."""

import numpy as np
import pytest
from scipy import ndimage

from torchkiln.datasets.cosmic import COSMIC, NEUTRINO, GeneratedEvents, generate_event

NUM_EVENTS = 24
# Five real events are few: their own means scatter by about as much.
FACTOR = 1.7


@pytest.fixture(scope="module")
def events():
    return [GeneratedEvents(NUM_EVENTS, seed=3)[index] for index in range(NUM_EVENTS)]


def test_an_event_is_a_function_of_seed_and_number(events):
    again = generate_event(3, 1)
    assert np.array_equal(again.values, events[1].values)
    assert np.array_equal(again.labels, events[1].labels)
    for other in (generate_event(3, 2), generate_event(4, 1)):
        assert not np.array_equal(again.values, other.values)


def test_every_pixel_is_there_once_in_the_order_of_files(events):
    for event in events:
        pixels = (event.planes.astype(np.int64) * 2048 + event.wires) * 1280 + event.ticks
        assert (np.diff(pixels) > 0).all()
        assert event.values.min() >= 5
        assert event.ticks.max() < 1280
        assert event.wires.max() < 2048


def test_every_event_has_a_neutrino_and_nearly_all_have_muons(events):
    assert all((event.labels == NEUTRINO).any() for event in events)
    assert np.mean([(event.labels == COSMIC).any() for event in events]) > 0.9


def test_the_planes_see_the_same_particles_at_the_same_time(events):
    """Charge drifts to all planes at once, so they agree on which ticks have most of it."""
    for event in events:
        wanted = event.labels == NEUTRINO
        seen = [np.bincount(event.ticks[wanted & (event.planes == p)]) > 0 for p in range(3)]
        length = min(map(len, seen))
        shared = np.mean(seen[0][:length] & seen[2][:length]) / np.mean(seen[0][:length])
        assert shared > 0.6


def test_three_views_are_those_of_one_place(events):
    """The wires that cross at one place are bound by the geometry: u + v - z is constant."""
    event = events[0]
    wanted = event.labels == NEUTRINO
    means = [event.wires[wanted & (event.planes == plane)].mean() for plane in range(3)]
    assert means[0] + means[1] - means[2] == pytest.approx(1024, abs=40)


def track_lengths(events):
    """Lengths of what hangs together in the images of cosmics, in pixels."""
    lengths = []
    for event in events:
        _, labels = event.dense(4)
        for plane in labels == COSMIC:
            joined, _ = ndimage.label(plane, structure=np.ones((3, 3)))
            for rows, columns in ndimage.find_objects(joined):
                size = np.hypot(rows.stop - rows.start, columns.stop - columns.start)
                lengths.append(4 * size)
    return np.array([length for length in lengths if length > 40])


def describe(events):
    """What real and generated events are compared by."""
    found = {}
    for plane in range(3):
        for kind, name in enumerate(("background", "cosmic", "neutrino")):
            chosen = [(event.planes == plane) & (event.labels == kind) for event in events]
            found[f"{name} pixels in plane {plane}"] = np.mean([c.sum() for c in chosen])
            values = np.concatenate([e.values[c] for e, c in zip(events, chosen, strict=True)])
            for share in (0.25, 0.5, 0.75, 0.95):
                found[f"{name} signal in plane {plane} at {share}"] = np.quantile(values, share)
    lengths = track_lengths(events)
    found["tracks in an event"] = len(lengths) / len(events)
    for share in (0.25, 0.5, 0.75, 0.95):
        found[f"track length at {share}"] = np.quantile(lengths, share)
    return found


def test_generated_events_are_like_real_ones(events, real_events):
    generated, real = describe(events), describe([real_events[index] for index in range(5)])
    ratios = {name: generated[name] / real[name] for name in real}
    outside = {name: r for name, r in ratios.items() if not 1 / FACTOR < r < FACTOR}
    assert not outside

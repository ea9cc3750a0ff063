import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from torchkiln.apps.cosmic._pictures import _draw_curves, write_curves, write_event_picture
from torchkiln.apps.cosmic._record import EpochMetrics
from torchkiln.models import SegmentationMetrics
from torchkiln.report._theme import LIGHT

RED = np.array([0xD1, 0x34, 0x2F]) / 255


def red_share(path, columns):
    """How much of one of the three columns of a picture has the colour of neutrinos."""
    pixels = matplotlib.image.imread(path)[..., :3]
    width = pixels.shape[1] // 3
    part = pixels[:, columns * width : (columns + 1) * width]
    return float((np.abs(part - RED).max(axis=-1) < 0.02).mean())


def test_truth_and_prediction_stand_beside_the_input(tmp_path):
    image = np.ones((3, 8, 16), np.float32)
    truth = np.full((3, 8, 16), 2, np.uint8)
    path = tmp_path / "new" / "event.png"
    write_event_picture(path, image, truth, np.zeros_like(truth), "some event")
    shares = [red_share(path, column) for column in range(3)]
    assert shares[1] > 0.4
    # The legend has a patch of it.
    assert max(shares[0], shares[2]) < 0.05


def test_curves_of_an_unfinished_run_can_be_drawn(tmp_path):
    metrics = SegmentationMetrics(
        accuracy=0.9, non_background_accuracy=0.8, cosmic_iou=0.7, neutrino_iou=0.5, mean_iou=0.6
    )
    epoch = EpochMetrics(0, 0.1, 2.0, 4, 0.01, metrics, metrics)
    write_curves(tmp_path / "one.png", [0.3, 0.2], [epoch])
    write_curves(tmp_path / "none.png", [0.3], [])
    one, none = (matplotlib.image.imread(tmp_path / f"{name}.png") for name in ("one", "none"))
    assert one.shape == none.shape
    assert not np.array_equal(one, none)


def metrics_of(share):
    return SegmentationMetrics(
        accuracy=0.9,
        non_background_accuracy=share,
        cosmic_iou=share,
        neutrino_iou=share,
        mean_iou=share,
    )


def curves(num_updates, num_epochs):
    figure = Figure(figsize=(9.5, 3.9))
    epochs = [
        EpochMetrics(number, 0.1, 2.0, 4, 0.01, metrics_of(0.5), metrics_of(0.5))
        for number in range(num_epochs)
    ]
    _draw_curves(figure, LIGHT, [1.0 / (1 + update) for update in range(num_updates)], epochs)
    return figure.axes


def test_a_few_updates_have_marks_and_the_axes_stop_with_them():
    left, right = curves(3, 1)
    assert left.lines[0].get_marker() == "o"
    assert left.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert left.get_xlim() == pytest.approx((0.96, 3.04))
    assert right.get_xticks().tolist() == [1]


def test_many_updates_are_a_curve():
    left, right = curves(500, 5)
    assert left.lines[0].get_marker() == "None"
    assert left.get_yscale() == "log"
    assert right.get_xlim() == pytest.approx((0.92, 5.08))

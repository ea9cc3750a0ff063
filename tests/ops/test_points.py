import pytest
import torch

from torchkiln.ops import farthest_points, nearest


def test_farthest_points_alternate_between_the_ends():
    line = torch.tensor([[0.0], [1.0], [2.0], [10.0]])
    assert farthest_points(line, [0, 4], ratio=0.75).tolist() == [0, 3, 2]


def test_examples_are_sampled_apart():
    points = torch.tensor([[0.0], [5.0], [1.0], [100.0], [103.0]])
    assert farthest_points(points, [0, 3, 5], ratio=0.5).tolist() == [0, 1, 3]


def test_random_start_follows_torchs_generator():
    points = torch.randn(50, 3)
    torch.manual_seed(1)
    first = farthest_points(points, [0, 50], random_start=True)
    torch.manual_seed(1)
    assert torch.equal(first, farthest_points(points, [0, 50], random_start=True))
    assert first[0] != 0


@pytest.mark.parametrize("ptr", [[0], [0, 9], [2, 1], [-1, 2]])
def test_bounds_that_do_not_fit_are_refused(ptr):
    with pytest.raises(ValueError, match="ascending bounds"):
        farthest_points(torch.zeros(4, 2), ptr)


def test_ratio_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="ratio"):
        farthest_points(torch.zeros(4, 2), [0, 4], ratio=0.0)


def test_nearest_finds_the_closest_row():
    x = torch.tensor([[0.1], [5.2], [8.9]])
    y = torch.tensor([[0.0], [5.0], [9.0]])
    assert nearest(x, y).tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_nearest_in_half_precision_is_that_of_the_same_numbers_in_float(dtype):
    torch.manual_seed(0)
    x, y = torch.randn(20, 3).to(dtype), torch.randn(30, 3).to(dtype)
    assert torch.equal(nearest(x, y), nearest(x.float(), y.float()))
    # Both distances would be infinite in half precision.
    far = torch.tensor([[60000.0], [-50000.0]]).to(dtype)
    assert nearest(torch.tensor([[-60000.0]]).to(dtype), far.flip(0)).tolist() == [0]


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_nearest_stays_within_the_example(kind):
    x, y = torch.tensor([0.0, 0.0]), torch.tensor([3.0, 1.0, 2.0])
    assert nearest(x, y, kind([0, 1]), [0, 0, 1]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("batch_x", "batch_y", "fragment"),
    [
        ([1, 0], [0, 1], "sorted"),
        ([0, 2], [0, 1], r"\[2\] of batch_x have no point"),
        ([0], [0, 1], "2 entries"),
    ],
)
def test_batches_that_do_not_fit_are_refused(batch_x, batch_y, fragment):
    with pytest.raises(ValueError, match=fragment):
        nearest(torch.zeros(2, 3), torch.zeros(2, 3), batch_x, batch_y)

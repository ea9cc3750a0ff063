import pytest
import torch

from torchkiln.core import ArgumentError
from torchkiln.ops import segment_sum


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 100), (50, 3, 5), (0, 4)])
def test_sums_are_those_of_index_add(shape, dtype):
    batch = torch.randint(1, 9, shape[:1]).sort().values
    x = torch.randn(shape).to(dtype)
    out = segment_sum(x, batch, 12)
    expected = torch.zeros(12, *shape[1:], dtype=dtype).index_add(0, batch, x)
    torch.testing.assert_close(out, expected)


def test_derivatives_to_second_order():
    batch = torch.tensor([0, 0, 2, 2, 2])
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: segment_sum(x, batch, 4), x)
    assert torch.autograd.gradgradcheck(lambda x: segment_sum(x, batch, 4) ** 2, x)


def test_the_number_of_threads_changes_no_bit(small_work_is_shared):
    batch = torch.randint(0, 40, (1000,)).sort().values
    x = torch.randn(1000, 37)
    results = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        results.append(segment_sum(x, batch, 50))
    torch.set_num_threads(2)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([0, 1, 0, 1], r"ascending, but row 2 \(segment 0\)"),
        ([0, 1, 2, 3], "row 3 is in segment 3, but there are 3"),
        ([-1, 0, 1, 2], "row 0 is in segment -1"),
        ([2, 2, 1, 1], r"ascending, but row 2"),
    ],
)
def test_rows_out_of_order_are_refused(
    batch, message, threads, native, use_plain_torch, small_work_is_shared
):
    if not native:
        use_plain_torch()
    torch.set_num_threads(threads)
    with pytest.raises(ArgumentError, match=message):
        segment_sum(torch.randn(4, 3), torch.tensor(batch), 3)
    torch.set_num_threads(2)


def test_wrong_forms_are_refused():
    with pytest.raises(ArgumentError, match="one entry for each row"):
        segment_sum(torch.randn(4, 3), torch.zeros(3, dtype=torch.long), 2)
    with pytest.raises(ArgumentError, match="int64"):
        segment_sum(torch.randn(4, 3), torch.zeros(4), 2)

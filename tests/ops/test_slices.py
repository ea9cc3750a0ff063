import pytest
import torch

from torchkiln.ops import dynamic_slice, dynamic_update


@pytest.mark.parametrize("step", [1, 2])
def test_dynamic_slice_equals_a_python_slice(step):
    tensor = torch.arange(24.0).reshape(2, 12)
    sliced = dynamic_slice(tensor, 1, torch.tensor([3]), 5, step)
    torch.testing.assert_close(sliced, tensor[:, 3:8:step])


def test_dynamic_slice_passes_gradients_to_the_slice_only():
    tensor = torch.ones(6, requires_grad=True)
    dynamic_slice(tensor, 0, torch.tensor(2), 3).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [0, 0, 1, 1, 1, 0]


def test_dynamic_update_writes_into_a_copy():
    tensor = torch.zeros(4, 2)
    updated = dynamic_update(tensor, torch.ones(2, 2), 0, torch.tensor([1]), 2)
    assert updated[:, 0].tolist() == [0, 1, 1, 0]
    assert tensor.sum() == 0


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (lambda x: dynamic_slice(x, 0, torch.tensor([1, 2]), 2), "one integer"),
        (lambda x: dynamic_slice(x, 0, torch.tensor(1.0), 2), "one integer"),
        (lambda x: dynamic_slice(x, 0, torch.tensor(0), 5), "size must be 1 to 4"),
        (lambda x: dynamic_slice(x, 0, torch.tensor(0), 2, 0), "step must be at least 1"),
        (lambda x: dynamic_update(x, torch.ones(2, 1), 0, torch.tensor(0), 2), "same rank"),
        (lambda x: dynamic_update(x, torch.ones(2).int(), 0, torch.tensor(0), 2), "same dtype"),
        (lambda x: dynamic_update(x, torch.ones(3), 0, torch.tensor(0), 2), "3 entries"),
    ],
)
def test_bad_arguments_name_the_problem(call, fragment):
    with pytest.raises(ValueError, match=fragment):
        call(torch.zeros(4))

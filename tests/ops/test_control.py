import pytest
import torch

from torchkiln.ops import choose, repeat


def test_repeat_applies_the_body_count_times():
    x, y = repeat(3, lambda a, b: [a * 2, b + a], [torch.tensor(1.0), torch.tensor(0.0)])
    assert (x.item(), y.item()) == (8.0, 7.0)


def test_repeat_does_not_change_its_inputs():
    start = torch.zeros(2)
    repeat(2, lambda a: [a.add_(1)], [start])
    assert start.tolist() == [0, 0]


def test_a_body_that_loses_a_tensor_is_refused():
    with pytest.raises(ValueError, match="takes 2 tensors and returned 1"):
        repeat(1, lambda a, b: [a], [torch.zeros(1), torch.zeros(1)])


@pytest.mark.parametrize("flag", [True, False])
def test_choose_selects_by_the_condition(flag):
    x = torch.tensor([1.0, 2.0])
    (result,) = choose(torch.tensor(flag), lambda a: a + 1, [x], lambda a: a * 10, [x])
    torch.testing.assert_close(result, x + 1 if flag else x * 10)


def test_choose_keeps_nan_of_the_other_branch_out():
    x = torch.tensor([-1.0])
    (result,) = choose(torch.tensor([False]), torch.log, [x], torch.abs, [x])
    assert result.tolist() == [1.0]


@pytest.mark.parametrize(
    ("then_body", "fragment"),
    [
        (lambda a: [a, a], "same number of tensors"),
        (lambda a: a[:1], "same shapes"),
        (lambda a: a.int(), "same shapes and dtypes"),
    ],
)
def test_branches_that_do_not_match_are_refused(then_body, fragment):
    x = torch.zeros(2)
    with pytest.raises(ValueError, match=fragment):
        choose(torch.tensor(True), then_body, [x], lambda a: a, [x])


def test_condition_with_several_elements_is_refused():
    with pytest.raises(ValueError, match="one element"):
        choose(torch.ones(2), lambda: torch.ones(1), [], lambda: torch.ones(1), [])

"""What the message about values that differ says."""

from __future__ import annotations

import pytest

from torchkiln.distributed._comparison import differences


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([2, 3], "2 on rank 0, 3 on rank 1"),
        ([2, 3, 2, 3], "2 on ranks 0 and 2, 3 on ranks 1 and 3"),
        ([1, 2, 2, 2], "1 on rank 0, 2 on ranks 1 to 3"),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], "b is 2 on rank 0, 3 on rank 1"),
        ([{"a": 1}, {}], "a is 1 on rank 0, nothing on rank 1"),
        ([{"a": 1}, 1], "{'a': 1} on rank 0, 1 on rank 1"),
    ],
)
def test_differences_are_told_by_rank(values, text):
    assert differences(values) == text


def test_only_a_few_names_are_listed():
    first = dict.fromkeys("abcde", 1)
    text = differences([first, dict.fromkeys("abcde", 2)])
    assert "c is 1 on rank 0, 2 on rank 1; and 2 more" in text
    assert "d is" not in text


def test_values_whose_middles_differ_are_not_shown_as_if_they_were_equal():
    text = differences([f"{'x' * 200}{middle}{'x' * 200}" for middle in "yz"])
    assert "not shown" in text

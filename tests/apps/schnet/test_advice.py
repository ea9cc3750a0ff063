"""A run that learnt nothing gets advice that fits its settings."""

import pytest
from _tiny_training import make_dataset

from torchkiln.apps.schnet._advice import make_advice
from torchkiln.apps.schnet._arguments import read_settings


@pytest.mark.parametrize(
    ("flags", "num_updates", "words"),
    [
        ("--num_epochs 2", 40, "train longer (--num_epochs 6): it made 40 weight updates"),
        ("", 9_000, "--learning_rate_decay 0.7"),
        ("--per_atom false --learning_rate_decay 0.7", 9_000, "--per_atom true"),
        ("--references none --learning_rate_decay 0.7", 9_000, "--references fitted"),
        ("--learning_rate 0.03 --learning_rate_decay 0.5", 9_000, "--learning_rate 0.01"),
    ],
)
def test_advice_names_the_flag_that_is_to_change(flags, num_updates, words):
    advice = make_advice(read_settings(flags.split()), make_dataset(), num_updates)
    assert words in advice
    assert advice.startswith("Try to ")
    assert advice.endswith(".")


def test_a_label_that_a_formula_tells_exactly_needs_another_target_not_more_epochs():
    advice = make_advice(read_settings([]), make_dataset(), num_updates=40, is_baseline_exact=True)
    assert advice.startswith("Choose another --target: ")
    assert "longer" not in advice


def test_what_is_set_already_is_not_advised():
    advice = make_advice(
        read_settings(["--learning_rate_decay", "0.8"]), make_dataset(), num_updates=9_000
    )
    assert "decay" not in advice
    assert "longer" not in advice

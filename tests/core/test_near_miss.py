import pytest

from torchkiln.core._near_miss import did_you_mean, near_misses

NAMES = ["learning_rate", "num_epochs", "seed", "bench.seed", "data.seed"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lr", ["learning_rate"]),
        ("LR", ["learning_rate"]),
        ("epochs", ["num_epochs"]),
        ("learning-rate", ["learning_rate"]),
        ("num_epoch", ["num_epochs"]),
        ("gpu", []),  # would be --device, which is not among the names
        ("xyzzy", []),
    ],
)
def test_a_name_is_found_by_other_words_and_by_spelling(name, meant):
    assert near_misses(name, NAMES) == meant


def test_a_name_of_several_groups_finds_all_of_them():
    assert near_misses("seed", NAMES[1:]) == ["seed", "bench.seed", "data.seed"]


def test_a_name_without_end_takes_no_time_without_end():
    assert near_misses("x" * 10**6, NAMES) == []


def test_the_sentence_has_what_stands_before_names():
    assert did_you_mean("lr", NAMES, before="--") == "did you mean --learning_rate?"
    assert did_you_mean("xyzzy", NAMES, otherwise="see the list") == "see the list"

"""One of several values: found by itself or by name, refused with a near match."""

import enum

import pytest

from torchkiln.core import OptionsError, to_choice


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


@pytest.mark.parametrize("value", [Colour.RED, "red", "Red", "RED"])
def test_a_member_is_itself_or_named_in_any_case(value):
    assert to_choice(Colour, value, "colour") is Colour.RED


def test_texts_are_taken_as_they_are():
    assert to_choice(("IPU_RESET", "reset"), "reset", "action") == "reset"
    with pytest.raises(OptionsError, match="did you mean 'IPU_RESET'"):
        to_choice(("IPU_RESET", "LINK"), "ipu_reset", "action")


def test_some_members_only():
    with pytest.raises(OptionsError, match=r"^colour must be one of 'red'; got 'green'$"):
        to_choice((Colour.RED,), "green", "colour")
    with pytest.raises(OptionsError, match=r"got <Colour\.GREEN"):
        to_choice((Colour.RED,), Colour.GREEN, "colour")


def test_the_error_names_value_choices_and_a_near_match():
    with pytest.raises(OptionsError) as raised:
        to_choice(Colour, "gren", "colour")
    expected = "colour must be one of 'red', 'green'; got 'gren'; did you mean 'green'?"
    assert str(raised.value) == expected


def test_the_error_is_of_the_kind_that_is_asked_for():
    with pytest.raises(KeyError, match="colour must be one of"):
        to_choice(Colour, "blue", "colour", KeyError)


@pytest.mark.parametrize("value", [None, 3, ["red"], {"red": 1}, 1.5])
def test_other_types_are_refused_and_shown(value):
    with pytest.raises(OptionsError, match="colour must be one of 'red', 'green'; got"):
        to_choice(Colour, value, "colour")


def test_an_endless_value_is_cut():
    with pytest.raises(OptionsError) as raised:
        to_choice(Colour, "r" * 10_000, "colour")
    assert len(str(raised.value)) < 200

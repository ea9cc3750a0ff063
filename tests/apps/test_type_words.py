import enum
from pathlib import Path
from typing import Literal

import pytest

from torchkiln.apps._type_words import choices_of, words_for, wrong_value
from torchkiln.core import Options


class Colour(enum.Enum):
    red = 1
    green = 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number"),
        (float | None, "a number or null"),
        (Path | None, "a path or null"),
        (bool, "true or false"),
        (bool | None, "true, false or null"),
        (Literal["mse", "mae"], "mse or mae"),
        (Literal["a", "b"] | None, "a, b or null"),
        (Colour, "red or green"),
        (list[str], "a list such as [one, two]"),
        (list[int] | str, "a list such as [8, 1, 1] or text"),
        (dict[str, int], "names with values"),
        (Options | None, "names with values or null"),
    ],
)
def test_types_are_plain_words(kind, words):
    assert words_for(kind) == words


def test_only_types_of_certain_words_have_choices():
    assert choices_of(Literal["mse", "mae"]) == ["mse", "mae"]
    assert choices_of(Colour | None) == ["red", "green", "null"]
    assert choices_of(int | None) == []


def test_a_wrong_value_is_named_with_what_was_meant():
    assert wrong_value("loss", Literal["mse", "mae"], "msee") == (
        "loss must be mse or mae, got 'msee'; did you mean mse?"
    )
    assert wrong_value("epochs", int, "many") == "epochs must be a whole number, got 'many'"

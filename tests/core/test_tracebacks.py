"""Errors of ours end with the user's own frames; `TORCHKILN_FULL_TRACEBACK=1` shows all."""

from __future__ import annotations

import traceback

import pytest

from torchkiln.core import OptionsError, ShapeChanged, _tracebacks
from torchkiln.core._tracebacks import is_users, short_tracebacks


def functions_in(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def library(function):
    """Call from a frame that counts as ours."""
    source = "def inside(function):\n    return function()\n"
    values = {"__name__": "torchkiln.inside"}
    exec(compile(source, _tracebacks.__file__, "exec"), values)
    return values["inside"](function)


def users_code():
    raise KeyError("what torch says")


@short_tracebacks()
def entry():
    try:
        library(users_code)
    except KeyError as error:
        raise ShapeChanged("what we say") from error


def test_frames_of_ours_go_and_those_of_the_user_stay():
    with pytest.raises(ShapeChanged) as caught:
        library(entry)
    names = functions_in(caught.value)
    assert names[-1] == "users_code"
    # Above the entry point, everything stays: whoever called may be anybody.
    assert names.count("inside") == 1


def test_what_it_was_made_from_is_not_shown_but_reachable():
    with pytest.raises(ShapeChanged) as caught:
        entry()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert isinstance(caught.value.__context__, KeyError)
    assert "direct cause" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(("value", "is_full"), [("1", True), ("0", False), ("", False)])
def test_a_variable_shows_everything(monkeypatch, value, is_full):
    monkeypatch.setenv("TORCHKILN_FULL_TRACEBACK", value)
    with pytest.raises(ShapeChanged) as caught:
        entry()
    assert isinstance(caught.value.__cause__, KeyError) is is_full
    shown = "".join(traceback.format_exception(caught.value))
    assert ("direct cause" in shown) is is_full


def test_entries_inside_entries_add_no_frames():
    @short_tracebacks()
    def outer():
        return library(entry)

    with pytest.raises(ShapeChanged) as caught:
        outer()
    names = functions_in(caught.value)
    assert "inside" not in names
    assert names[-1] == "users_code"


def test_other_errors_are_left_alone():
    @short_tracebacks()
    def call():
        library(users_code)

    with pytest.raises(KeyError) as caught:
        call()
    assert "inside" in functions_in(caught.value)


def test_facades_name_errors_of_their_own():
    @short_tracebacks(AssertionError)
    def call():
        try:
            library(users_code)
        except KeyError as error:
            raise AssertionError("in the original's words") from error

    with pytest.raises(AssertionError) as caught:
        call()
    assert caught.value.__cause__ is None
    assert functions_in(caught.value)[-1] == "users_code"


def test_a_function_keeps_its_name_and_signature():
    assert entry.__name__ == "entry"
    with pytest.raises(TypeError, match="positional argument"):
        entry(1)


def test_results_pass():
    assert short_tracebacks()(lambda x, *, y: (x, y))(1, y=2) == (1, 2)


def test_an_error_without_users_frames_has_none():
    @short_tracebacks()
    def refuse():
        raise OptionsError("no")

    error = None
    try:
        refuse()
    except OptionsError as caught:
        error = caught
    assert functions_in(error)[0] == "test_an_error_without_users_frames_has_none"


def test_text_that_a_library_made_a_function_of_is_not_the_users():
    frames = []
    code = compile("import sys; frames.append(sys._getframe())", "<string>", "exec")
    exec(code, {"frames": frames, "__name__": "__main__"})  # as `python -c` does
    exec(code, {"frames": frames})  # as torch does
    typed, made = frames
    assert is_users(typed)
    assert not is_users(made)
